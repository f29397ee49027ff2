"""Turns texts into vectors: the embedding model, in a process of its own."""
