"""The connection to a server: how messages get there and back, and what they mean."""
