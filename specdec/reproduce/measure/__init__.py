"""Measurements for studies only; no decode of a user needs them."""
