"""Conditions on entries, their order and pages, saved queries and resource sets."""
