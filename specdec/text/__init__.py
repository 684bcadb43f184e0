"""Text as tokens, and back: transformers' vocabularies, T5X's, and those that are trained here."""
