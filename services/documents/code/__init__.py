"""What code defines and uses, and how documents and their symbols are related."""
