"""Requests in people's words, and how often the right operation is among the first three."""
