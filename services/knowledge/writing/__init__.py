"""Notes written by clients: made, edited and renamed, each a whole file or none."""
