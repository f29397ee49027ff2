"""Resource sets: their graph, their members, and the tools that create, fill and search them."""
