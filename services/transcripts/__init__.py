"""Conversations with language models: kept by content, found again."""
