"""Generations on the nodes of a cluster: `driver` talks to its process, `nodes` places generations there."""
