"""Runs of studies: what gin binds, and what each keeps on disk."""
