"""Benchmarks of the document store against its peers."""
