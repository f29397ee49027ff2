"""Text: extraction, indexes, grep and search."""
