"""Training: targets, distilled drafts, heads, mutual learning, n-gram tables.

Every run can be stopped and continued.
"""
