"""The decode itself: what a user chooses (``options.py``), what is built of it (``build.py``), the
engine's blocks and loop, and beam search.

Written for the protocols: no model, drafter or verifier is special here.
"""
