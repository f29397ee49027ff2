"""A recording proxy: HTTP between a client and a model API passes through byte for byte, and is recorded afterwards."""
