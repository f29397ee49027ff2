"""Source databases whose pages are on a PostgreSQL server, for kernels that take over from each other.

`server` has the connection, the hold and the commits; `pages` is the VFS of SQLite above it; `holding` waits for the
hold and ends the process that loses it. Only processes that use them import these modules.
"""
