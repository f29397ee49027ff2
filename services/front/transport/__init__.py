"""Transports: HTTP and stdio, their sessions, and access control."""
