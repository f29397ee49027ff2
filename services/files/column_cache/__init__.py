"""The entries of the index as columns in memory, for questions that look at very many of them."""
