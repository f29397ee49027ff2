"""Backups of a data directory: `stores` says what belongs in one, `moment` holds it still, `target` keeps it,
`making` and `restoring` join these.  All of it blocks, and runs in a process of its own, with or without a kernel."""
