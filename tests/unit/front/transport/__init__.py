"""Transports: stdio and HTTP."""
