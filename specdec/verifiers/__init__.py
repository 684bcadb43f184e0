"""Verifiers decide which guesses are kept: one file for each rule. Never imports drafters."""
