"""Conditions on entries, their order and pages, and saved queries."""
