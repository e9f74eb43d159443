"""Scorers behind an endpoint: how one is reached, asked and believed."""
