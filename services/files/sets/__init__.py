"""Resource sets: their graph, what is in them, and the tools that make, fill and search them."""
