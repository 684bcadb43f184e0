"""The products of a decode step that every architecture shares, on CPU and elsewhere."""
