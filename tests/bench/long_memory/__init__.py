"""Recall over months of sessions."""
