"""Changes to notes."""
