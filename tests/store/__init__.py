"""What every store of collections must do, tested on each: files of this machine, and a PostgreSQL server."""
