"""The databases, with contents and documents."""
