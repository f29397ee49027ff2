"""The content-addressed document store: contents by hash, documents by path, search by text, symbol and meaning."""
