"""Fronts: their clients, large answers, long calls."""
