"""Measuring: costs, speed, alpha, quality, and how results are written and shown."""
