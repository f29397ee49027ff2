"""Shared code of services that run a model: finding the weights, batching, choosing the precision."""
