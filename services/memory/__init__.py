"""Statements that agents keep, with their scopes, times and sources."""
