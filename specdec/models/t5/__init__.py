"""T5 in all its versions: network, packed decode parameters and decode model."""
