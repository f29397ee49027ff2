"""Isolated service processes, a folder each.  They never import each other, nor the kernel."""
