"""Rules for logits that depend on the tokens so far: one file for each kind. See ``base``."""
