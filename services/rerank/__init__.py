"""Scores a text for a query: the cross-encoder, in a process of its own."""
