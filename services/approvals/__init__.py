"""Keeps the calls of clients that wait for a person, and the decisions."""
