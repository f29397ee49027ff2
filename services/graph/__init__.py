"""Nodes and typed edges of every corpus."""
