"""The Transformer of every family: one config, network, packer and decode model."""
