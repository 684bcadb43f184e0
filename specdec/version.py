"""The one place of the version; setup.py reads it without importing specdec."""

__version__ = "0.1.0"
