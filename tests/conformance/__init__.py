"""The service `conformance`."""
