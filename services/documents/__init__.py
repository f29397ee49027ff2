"""The content-addressed document store: contents by hash, documents by path, found by text, symbol and meaning."""
