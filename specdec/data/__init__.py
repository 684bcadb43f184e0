"""Tasks as streams of rows, and texts as the token ids that a model is given.

Only ``seqio_tasks.py`` imports tensorflow.
"""
