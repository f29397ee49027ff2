"""Finding text: extraction, indexes, grep and search."""
