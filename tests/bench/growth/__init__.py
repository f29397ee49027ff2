"""How the cost of each path grows with what is stored."""
