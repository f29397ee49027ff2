"""Memory compared with plain search over the underlying conversations."""
