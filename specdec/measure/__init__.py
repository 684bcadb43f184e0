"""Measuring: costs, speed, alpha, quality; the one chooser of "auto"; results files and tables.

Measures decoders, not pairs, so that :mod:`specdec.api` can use it.
"""
