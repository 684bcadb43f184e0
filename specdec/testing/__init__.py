"""Proofs that a decode is lossless: an exact oracle, toy models, parts broken on purpose."""
