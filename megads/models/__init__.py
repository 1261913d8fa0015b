"""Decoder models, defined once as an ordered list of layers."""
