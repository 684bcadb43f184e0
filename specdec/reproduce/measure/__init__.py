"""Measurements for the paper's figures and for benchmarks; no decode of a user needs them."""
