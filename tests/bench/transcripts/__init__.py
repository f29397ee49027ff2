"""Conversations at scale: `scripts/bench transcripts`."""
