"""Drafts: one file for each kind, with the spec that users pass to ``load_pair``.

Knows nothing of the decode loop or of verifiers.
"""
