"""The index of the file system.

Packages, each of which imports only those before it (and `core`, which holds what every family of operations is given):

    store          the database: tables, connections, functions of SQL
    index          one directory listed, the stored tree and its sums, scans and their jobs, single changes
    query          conditions, orders, pages, saved queries
    sets           resource sets: their graph, their members, searches over them
    browse         `index`, `navigate`, `inspect`, `synthesis://…`
    sources        folders that are followed or scanned under a name
    changes        renames, moves, deletions and the trash
    space          maps, duplicates, growth
    plans          plans: their sources, conditions, outcomes and executions

`main` opens the service; `compare_main` is the service `compare`, which looks at directories on behalf of scans. Only a
`tree.Edit` writes `entry` and `folder`; everything else reads the view `node`.
"""
