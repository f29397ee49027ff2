"""The tables, one family after another; missing ones are created.

There is a single tree that starts at `/`. `entry` holds every file and directory with the sums of everything below it;
`folder` holds what only directories have, above all their path. Folder paths end in `/`, so an entry's path is its
folder's path plus its name, and everything below a directory is one range of paths. Directories between `/` and an
indexed path are stored too, but are not scanned (`scanned` 0) and not visible. Neither is anything inside a collapsed
directory (`scanned` negative). Always serve clients from the view `node`, never `entry` alone.
"""

from __future__ import annotations

from services.files.manifest import SCHEMA_VERSION
from services.files.operations.shared import Kind

VERSION = SCHEMA_VERSION

ROOT = 1
"""The id of `/`; its parent is folder 0, whose path is empty."""

FILE, DIRECTORY, SYMLINK, OTHER = range(4)
"""Values of `entry.kind`."""

KINDS: tuple[Kind, ...] = ("file", "directory", "symlink", "other")
"""Names of the kinds, indexed by `entry.kind`."""

NO_FINGERPRINT = b""
"""The fingerprint of a directory whose entries have changed one by one since it was listed."""

RULED, WHOLE, INSIDE, ALL = range(4)
"""Values of `folder.rows`, which entries of a directory clients see.

RULED: each one, unless the directory's name collapses it. WHOLE: none, since it is collapsed. INSIDE: none, since it is
inside a collapsed directory. ALL: each one, whatever the names.
"""

TABLES = """
-- Times in nanoseconds, sizes in bytes. For a directory, `size` to `directories` are sums over everything below it;
-- `disk` also counts the directory itself, and each inode only once.
CREATE TABLE IF NOT EXISTS entry(
    id INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind INTEGER NOT NULL,
    size INTEGER NOT NULL,
    disk INTEGER NOT NULL,
    files INTEGER NOT NULL,
    directories INTEGER NOT NULL,
    mtime INTEGER NOT NULL,
    ctime INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    device INTEGER NOT NULL,
    links INTEGER NOT NULL,
    extension TEXT NOT NULL,
    scanned INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS entry_name ON entry(parent, name);
CREATE INDEX IF NOT EXISTS entry_inode ON entry(inode);

-- `fingerprint` identifies the listing: NULL before the first one, empty if single entries were stored since. The
-- listing has `inside` subdirectories and `own_files` files; everything but the subdirectories takes `own_size` bytes.
-- `problem` says why the directory could not be read.
CREATE TABLE IF NOT EXISTS folder(
    id INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    path TEXT NOT NULL UNIQUE,
    own_disk INTEGER NOT NULL,
    fingerprint BLOB,
    problem TEXT,
    inside INTEGER NOT NULL DEFAULT 0,
    own_files INTEGER NOT NULL DEFAULT 0,
    own_size INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS folder_parent ON folder(parent);
CREATE INDEX IF NOT EXISTS folder_whole ON folder(path) WHERE rows = 1;

-- Every entry has a folder; with a left join, it is only looked up if a query needs the path.
DROP VIEW IF EXISTS node;
CREATE VIEW node AS
    SELECT entry.*, folder.path AS folder, folder.path || entry.name AS path
    FROM entry LEFT JOIN folder ON folder.id = entry.parent WHERE entry.scanned > 0;

INSERT OR IGNORE INTO folder(id, parent, path, own_disk) VALUES(0, -1, '', 0), (1, 0, '/', 0);
INSERT OR IGNORE INTO entry VALUES(1, 0, '/', 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, '', 0);

-- A run of `index`. `status`: pending, running, completed, failed, cancelled. `rows`: new value of `folder.rows`, or
-- NULL to leave it unchanged. `wholes`: the collapsed directories after the run, as JSON.
CREATE TABLE IF NOT EXISTS job(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    root TEXT NOT NULL,
    status TEXT NOT NULL,
    progress REAL NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 1,
    background INTEGER NOT NULL,
    force INTEGER NOT NULL,
    created INTEGER NOT NULL,
    started INTEGER,
    finished INTEGER,
    files INTEGER NOT NULL DEFAULT 0,
    directories INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    problems INTEGER NOT NULL DEFAULT 0,
    problem TEXT,
    skipped TEXT,
    error TEXT,
    rows INTEGER,
    wholes TEXT
);
CREATE INDEX IF NOT EXISTS job_status ON job(status);
CREATE INDEX IF NOT EXISTS job_root ON job(root);

-- When the last complete scan of each requested path ended, in nanoseconds.
CREATE TABLE IF NOT EXISTS scan(root TEXT PRIMARY KEY, finished INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS resource_set(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL DEFAULT '',
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
);
-- The sets form an acyclic directed graph.
CREATE TABLE IF NOT EXISTS edge(
    parent INTEGER NOT NULL, child INTEGER NOT NULL, PRIMARY KEY(parent, child)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS edge_child ON edge(child);
CREATE TABLE IF NOT EXISTS member(
    set_id INTEGER NOT NULL, entry_id INTEGER NOT NULL, added INTEGER NOT NULL, PRIMARY KEY(set_id, entry_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS member_entry ON member(entry_id);

-- Triggers, so that every way of removing an entry or a set also removes what depends on it.
CREATE TRIGGER IF NOT EXISTS entry_departs AFTER DELETE ON entry BEGIN
    DELETE FROM member WHERE entry_id = OLD.id;
END;
CREATE TRIGGER IF NOT EXISTS set_departs AFTER DELETE ON resource_set BEGIN
    DELETE FROM member WHERE set_id = OLD.id;
    DELETE FROM edge WHERE parent = OLD.id OR child = OLD.id;
END;

-- Preferences of each session; all clients without a session share the one with an empty name.
CREATE TABLE IF NOT EXISTS session_preference(
    session TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(session, name)
) WITHOUT ROWID;

-- Definitions of queries, sources and plans are JSON, as their operations declare them.
CREATE TABLE IF NOT EXISTS saved_query(
    name TEXT PRIMARY KEY, definition TEXT NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL
) WITHOUT ROWID;

-- A followed folder, by its subscription at the watcher. `sequence`: the last change that is indexed, NULL before the
-- first scan. `ended`: the subscription still has to be cancelled at the watcher.
CREATE TABLE IF NOT EXISTS follow(
    subscription TEXT PRIMARY KEY,
    sequence INTEGER,
    changes INTEGER NOT NULL DEFAULT 0,
    latest INTEGER,
    ended INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
-- Directories (by id) that were listed without the watcher. It may never have seen their content, and so may not report
-- its removal: their stored entries are examined again. `below`: including all directories below.
CREATE TABLE IF NOT EXISTS unsure(folder INTEGER PRIMARY KEY, below INTEGER NOT NULL);

-- `wanted`: whether it should run, by the last request. `subscription`: its row of `follow` while it runs.
CREATE TABLE IF NOT EXISTS source(
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    subscription TEXT
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS plan(
    name TEXT PRIMARY KEY,
    definition TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    status TEXT NOT NULL
) WITHOUT ROWID;

-- A run of a plan, with its definition at the time. `source` and `after` are its position: the source, and the last
-- entry's id; `doing` is the path of an entry for which something was begun that must not be repeated.
CREATE TABLE IF NOT EXISTS execution(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    plan TEXT NOT NULL,
    definition TEXT NOT NULL,
    status TEXT NOT NULL,
    started INTEGER NOT NULL,
    finished INTEGER,
    processed INTEGER NOT NULL DEFAULT 0,
    matched INTEGER NOT NULL DEFAULT 0,
    applied INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    source INTEGER NOT NULL DEFAULT 0,
    after INTEGER NOT NULL DEFAULT 0,
    doing TEXT
);
CREATE INDEX IF NOT EXISTS execution_plan ON execution(plan);
CREATE TRIGGER IF NOT EXISTS plan_departs AFTER DELETE ON plan BEGIN
    DELETE FROM execution WHERE plan = OLD.name;
END;

-- A change on disk that is not indexed yet, written before it begins. `kind`: move, copy, folder, trash, restore,
-- delete, edit. Of a copy, inode and device are those of the copy once it is complete, and 0 before.
CREATE TABLE IF NOT EXISTS intent(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    target TEXT,
    inode INTEGER NOT NULL,
    device INTEGER NOT NULL,
    trash_id INTEGER
);
-- Deleted items that can be restored; an item's file is named by its id.
CREATE TABLE IF NOT EXISTS trash(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    kind INTEGER NOT NULL,
    size INTEGER NOT NULL,
    deleted INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS trash_path ON trash(path);
-- The sets of entries in the trash: `inside` is the path below the item, empty for the item itself. `target` is where
-- the item was restored, until its entries are indexed and have rejoined their sets. Item 0 does not exist in
-- the trash: it stands for the set members of a damaged database, with the full path in `inside` and an empty `target`.
CREATE TABLE IF NOT EXISTS trash_member(
    trash_id INTEGER NOT NULL,
    inside TEXT NOT NULL,
    set_id INTEGER NOT NULL,
    added INTEGER NOT NULL,
    target TEXT,
    PRIMARY KEY(trash_id, inside, set_id)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS trash_departs AFTER DELETE ON trash BEGIN
    DELETE FROM trash_member WHERE trash_id = OLD.id AND target IS NULL;
END;
CREATE TRIGGER IF NOT EXISTS set_departs_from_trash AFTER DELETE ON resource_set BEGIN
    DELETE FROM trash_member WHERE set_id = OLD.id;
END;

-- The size of a directory (path with slash) after each scan that changed it.
CREATE TABLE IF NOT EXISTS history(
    path TEXT NOT NULL, at INTEGER NOT NULL, size INTEGER NOT NULL, files INTEGER NOT NULL, PRIMARY KEY(path, at)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS classifier_job(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    operations TEXT NOT NULL,
    status TEXT NOT NULL,
    created INTEGER NOT NULL,
    started INTEGER,
    finished INTEGER,
    error TEXT
);
CREATE INDEX IF NOT EXISTS classifier_job_status ON classifier_job(status);
CREATE INDEX IF NOT EXISTS classifier_job_path ON classifier_job(path);
"""

NUMBERED = ("job", "resource_set", "execution", "intent", "trash", "classifier_job")
"""Tables whose ids are never reused: clients, the trash or other tables refer to them."""
