"""Text files: read, searched and edited."""
