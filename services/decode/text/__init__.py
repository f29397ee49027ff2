"""Documents as text, for search and grep."""
