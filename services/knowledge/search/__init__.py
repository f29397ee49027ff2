"""Searching notes: conditions, passages, and refinement by a language model."""
