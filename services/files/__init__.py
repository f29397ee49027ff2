"""The index of the file system.

`schema` has the tables, `database` the transactions on them, `core` what every family of operations is given. Beneath,
`listing` reads one directory, `tree` changes the stored tree and keeps every sum right, `scan` does both for all below
a path, of which `comparing` says what is as it was, with the help of `others`: processes of the service `compare`
(`compare_main`); `jobs` runs scans; `touched` tells scans what others changed meanwhile. Above, each family has an
`add_…` that registers its handlers: `indexing`, `reading`, `resources`, `queries`, `grouping`, `sources`, `plans`,
`classifying`; `sets`, `filters`, `matching`, `entries` and `named` serve them all. `live` takes single changes in,
`followers` has them from the watcher; `executions` runs plans, `finding` says what their sources find, `conditions`
which of it is meant, `outcomes` does what is to be done with it. `node` is the view to read from; only a `tree.Edit`
writes `entry` and `folder`.
"""
