"""Measurements that serve studies and no decode of a user."""
