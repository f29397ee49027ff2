"""How documents and their symbols are related, and their delivery to the graph service."""
