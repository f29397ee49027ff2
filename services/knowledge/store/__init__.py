"""The database of notes: notes, the edges between them, and the outbox to the graph."""
