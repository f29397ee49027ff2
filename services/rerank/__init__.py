"""Query and text to a score: the cross-encoder in a process of its own."""
