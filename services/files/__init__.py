"""The file system index.

Each package imports only those listed before it, and `core`, which holds what all families of operations share:

    store          the database: tables, connections, rows, SQL functions
    index          directories on disk, the stored tree and its sums, scans and their jobs
    query          conditions, orders, pages, saved queries; resource sets: their graph, members and searches
    changes        renames, moves, deletions and the trash
    plans          sources, which follow or scan folders; plans: what they match and do, and their executions
    browse         `index`, `navigate`, `inspect`, `synthesis://…`; maps, duplicates, growth

`main` opens the service; `index.comparing` also contains the service `compare`, which lists directories for scans. Only
an `edit.Edit` writes `entry` and `folder`; everything else reads the view `node`.
"""
