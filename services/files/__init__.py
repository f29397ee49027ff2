"""The index of the file system.

`schema` has the tables, `database` the transactions on them, `core` what every family of operations is given. Beneath,
`listing` reads one directory, `tree` changes the stored tree and keeps every sum right, `scan` does both for all below
a path, `jobs` runs scans; `touched` tells scans what others changed meanwhile. Above, each family has an `add_…` that
registers its handlers: `indexing`, `reading`, `resources`, `queries`, `grouping`; `sets`, `filters`, `matching`,
`entries` and `named` serve them all. `node` is the view to read from; only a `tree.Edit` writes `entry` and `folder`.
"""
