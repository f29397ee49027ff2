"""Stores statements for agents, with their scopes, times and sources."""
