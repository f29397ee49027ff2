"""Runs what the documentation says, to the letter."""
