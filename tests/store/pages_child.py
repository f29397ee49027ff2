"""A process that holds a file on a server and writes rows; for tests that kill it.

    python -m tests.store.pages_child DSN SCHEMA KERNEL

It prints the number of each row once its COMMIT has returned. Each transaction also changes many pages, and every third
one is rolled back, so that an incomplete one would be noticed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services.runtime.sources.pages import mounted
from services.runtime.sources.server import PageServer
from tests.store.pages import NAME, PATH, TABLES, connected


def main(dsn: str, schema: str, kernel: str) -> None:
    server = PageServer(dsn, NAME, kernel=kernel, machine=kernel, schema=schema)
    server.take()
    mounted(Path(PATH), server)
    connection = connected()
    connection.execute(TABLES).fetchall()
    # Changed pages leave this cache in the middle of a transaction.
    connection.pragma("cache_size", 10)
    number = int(connection.execute("SELECT coalesce(max(number), 0) FROM done").get)
    print("begun", flush=True)
    while True:
        number += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE filler SET of=?", (number,))
        connection.execute("INSERT INTO done VALUES(?)", (number,))
        if number % 3 == 0:
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE filler SET of=?", (number,))
            connection.execute("INSERT INTO done VALUES(?)", (number,))
        connection.execute("COMMIT")
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
