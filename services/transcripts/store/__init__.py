"""The database of conversations, the forest in it, and how its nodes are named."""
