"""The version; setup.py reads it from here without importing specdec."""

__version__ = "0.1.0"
