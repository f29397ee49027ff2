"""The indexes of a collection: of words, and of vectors."""
