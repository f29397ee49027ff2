"""The indexes of a collection."""
