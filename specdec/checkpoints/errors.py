"""The one exception that reading and writing checkpoints raises."""


class CheckpointError(ValueError):
    """A checkpoint cannot be read or written; the message names what is wrong and what to do."""
