"""Memory against plain search over the conversations that it was taken from."""
