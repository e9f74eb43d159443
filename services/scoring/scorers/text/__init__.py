"""Scorers that read the text alone, and how they find the answer in it."""
