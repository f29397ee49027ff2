"""Conversations at size: `scripts/bench transcripts`."""
