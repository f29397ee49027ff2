"""The tables, one family after another; each is created where it is missing.

The tree is one tree from `/` down. `entry` holds every file and directory with the sums of what lies below it, `folder`
what only a directory has, its path above all: paths end in `/`, so that an entry's path is its folder's path and its
name, and what lies below a directory is one range of paths. A directory between `/` and what was indexed is there as
well, not scanned (`scanned` 0), and is not shown, as is what lies in a directory that stands for all in it (`scanned`
negative): read the view `node`, never `entry` alone, to answer a client.
"""

from __future__ import annotations

from linckia.proto.ops.files.shared import Kind
from linckia.services.files.manifest import SCHEMA_VERSION

VERSION = SCHEMA_VERSION

ROOT = 1
"""The id of `/`; its parent is the folder 0, of which the path is empty."""

FILE, DIRECTORY, SYMLINK, OTHER = range(4)
"""`entry.kind`."""

KINDS: tuple[Kind, ...] = ("file", "directory", "symlink", "other")
"""By `entry.kind`."""

NO_FINGERPRINT = b""
"""Of a directory that was listed, and of which single entries have changed since."""

RULED, WHOLE, INSIDE, ALL = range(4)
"""`folder.rows`, what clients see of the entries in a directory: each, unless a name says that it stands for all in it;
none, as it stands for them; none, as it lies in such a one; each, whatever the names."""

TABLES = """
-- Times in nanoseconds, sizes in bytes. Of a directory, `size` to `directories` sum up all below it; `disk` also counts
-- the directory itself, and the links of one inode once.
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

-- `fingerprint` stands for all that was found directly in it, NULL until then, empty where single entries were stored
-- since: `inside` subdirectories and `own_files` files, its other entries being `own_size` bytes. `problem` says why it
-- could not be read.
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

-- Every entry has its folder; joined from the left, the folder is not looked up where no path is asked for.
DROP VIEW IF EXISTS node;
CREATE VIEW node AS
    SELECT entry.*, folder.path AS folder, folder.path || entry.name AS path
    FROM entry LEFT JOIN folder ON folder.id = entry.parent WHERE entry.scanned > 0;

INSERT OR IGNORE INTO folder(id, parent, path, own_disk) VALUES(0, -1, '', 0), (1, 0, '/', 0);
INSERT OR IGNORE INTO entry VALUES(1, 0, '/', 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, '', 0);

-- A run of `index`. `status`: pending, running, completed, failed, cancelled. `rows`: what `folder.rows` becomes, NULL:
-- as it is. `wholes`: what stands as one row afterwards, as JSON.
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

-- When each path that was asked for was last scanned to its end, in nanoseconds.
CREATE TABLE IF NOT EXISTS scan(root TEXT PRIMARY KEY, finished INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS resource_set(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL DEFAULT '',
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
);
-- The sets are a directed graph without cycles.
CREATE TABLE IF NOT EXISTS edge(
    parent INTEGER NOT NULL, child INTEGER NOT NULL, PRIMARY KEY(parent, child)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS edge_child ON edge(child);
CREATE TABLE IF NOT EXISTS member(
    set_id INTEGER NOT NULL, entry_id INTEGER NOT NULL, added INTEGER NOT NULL, PRIMARY KEY(set_id, entry_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS member_entry ON member(entry_id);

-- Triggers, so that no way to remove an entry or a set can forget what hangs on it.
CREATE TRIGGER IF NOT EXISTS entry_departs AFTER DELETE ON entry BEGIN
    DELETE FROM member WHERE entry_id = OLD.id;
END;
CREATE TRIGGER IF NOT EXISTS set_departs AFTER DELETE ON resource_set BEGIN
    DELETE FROM member WHERE set_id = OLD.id;
    DELETE FROM edge WHERE parent = OLD.id OR child = OLD.id;
END;

-- What the client of a session chose; the session without a name is that of all who have none.
CREATE TABLE IF NOT EXISTS session_preference(
    session TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY(session, name)
) WITHOUT ROWID;

-- A definition is JSON, as its operations declare it: of queries, sources and plans alike.
CREATE TABLE IF NOT EXISTS saved_query(
    name TEXT PRIMARY KEY, definition TEXT NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL
) WITHOUT ROWID;

-- A folder that is followed, under its name at the watcher: up to which of the changes the index is in step, NULL while
-- the state is still to be taken. `ended`: the watcher is to be told.
CREATE TABLE IF NOT EXISTS follow(
    subscription TEXT PRIMARY KEY,
    sequence INTEGER,
    changes INTEGER NOT NULL DEFAULT 0,
    latest INTEGER,
    ended INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
-- Directories (by their id) that were listed beside the watcher. It may never have seen what was in them then, and so
-- not report its removal: their stored entries are examined again. `below`: with all directories below.
CREATE TABLE IF NOT EXISTS unsure(folder INTEGER PRIMARY KEY, below INTEGER NOT NULL);

-- `wanted`: whether it is to run, by what was last asked for. `subscription` is its row of `follow`, while it does.
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

-- A run of a plan as `definition` had it then. `source` and `after` say how far it is: which source, and up to which
-- entry's id; `doing` is the path of an entry for which something was begun that must not be done twice.
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

-- A change of the disk that the index has yet to follow, written before it is begun. `kind`: move, trash, restore,
-- delete.
CREATE TABLE IF NOT EXISTS intent(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    target TEXT,
    inode INTEGER NOT NULL,
    device INTEGER NOT NULL,
    trash_id INTEGER
);
-- What was deleted and can be restored; its file is named by its id.
CREATE TABLE IF NOT EXISTS trash(
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    kind INTEGER NOT NULL,
    size INTEGER NOT NULL,
    deleted INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS trash_path ON trash(path);
-- In which sets the entries were that went into the trash: `inside` is the path from the item on, empty for itself.
-- `target` is where they came back, until they are in the index and so in their sets again. The trash has no item 0:
-- that is what a damaged database had in its sets, with `inside` the whole path and `target` empty.
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

-- How large a directory (its path with its slash) was after a scan, where that had changed.
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
"""Tables whose numbers are never given twice: clients, the trash or other tables hold them."""
