"""Search of notes: filters, passages, comparison, and refinement by a language model."""
