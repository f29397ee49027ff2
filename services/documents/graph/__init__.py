"""How documents and their symbols are related, and the graph that is told of it."""
