"""Calls routed to services: deadlines, cancellation, back-pressure, retry, quarantine."""
