"""Whisper by its own names for settings, which runs, gin files and users have."""
