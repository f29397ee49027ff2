"""The index of the file system.

Packages, each of which imports only those before it (and `core`, which holds what every family of operations is given):

    store          the database: tables, connections, rows, functions of SQL
    index          directories as they are on the disk, the stored tree and its sums, scans and their jobs
    query          conditions, orders, pages, saved queries; resource sets: their graph, members and searches
    changes        renames, moves, deletions and the trash
    plans          sources, which follow or scan folders; plans: what they find and do, and their executions
    browse         `index`, `navigate`, `inspect`, `synthesis://…`; maps, duplicates, growth

`main` opens the service; `index.comparing` has the service `compare` as well, which looks at directories on behalf of
scans. Only an `edit.Edit` writes `entry` and `folder`; everything else reads the view `node`.
"""
