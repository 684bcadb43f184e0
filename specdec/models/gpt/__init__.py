"""GPT-2's decoder: network, packed decode parameters and decode model."""
