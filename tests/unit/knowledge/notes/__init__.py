"""What is read of a note."""
