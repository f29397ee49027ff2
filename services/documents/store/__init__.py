"""The databases, and contents and documents in them."""
