"""The store of documents beside its peers."""
