"""Mounted servers compared with other gateways."""
