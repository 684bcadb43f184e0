"""Arithmetic on arrays, and small helpers around it: standardizing logits, residuals, theory,
statistics, random numbers, platforms, compiling.

Knows no model, no flax, no gin, no tensorflow.
"""
