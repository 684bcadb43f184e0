"""Trained embeddings behind a text, at which the target itself guesses several tokens at once."""
