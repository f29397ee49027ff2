"""Servers that run on a node of the cluster: here their stand-in, there their host, and the stream between them."""
