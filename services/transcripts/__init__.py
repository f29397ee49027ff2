"""Conversations with language models, stored by content and searchable."""
