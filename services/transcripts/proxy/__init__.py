"""A recording proxy: HTTP between a client and a model's API passes through byte for byte, and is kept afterwards."""
