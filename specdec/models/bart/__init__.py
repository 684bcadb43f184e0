"""BART and its kin: network, packed decode parameters and decode model."""
