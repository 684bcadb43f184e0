"""Texts in and out: tasks as streams of rows, and tokenizers of all supported vocabularies.

Only ``seqio_tasks.py`` imports tensorflow.
"""
