"""Scorers that are models, run in the worker itself."""
