"""Rules for logits that depend on what was generated: one file for each kind. See ``base``."""
