"""The journal of changes: taken over from the services that made them, listed, and undone."""
