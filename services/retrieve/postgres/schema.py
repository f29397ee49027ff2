"""The tables on the server.  Each collection has a partition of its own of every large table, used by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString

TABLES_VERSION: Final = 2

UPGRADES: Final[Mapping[int, LiteralString]] = {
    # A kernel that runs still, and knows only version 1, puts its vectors into the index, and searches without it.
    1: "ALTER TABLE vectors ADD COLUMN staged bool NOT NULL DEFAULT false",
}
"""What makes the tables of a version those of the next.  Takes a moment, however large they are."""

TABLES: Final[LiteralString] = """
CREATE TABLE collections (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- The data directory that feeds it; empty for the collections of clients, which all kernels share.
    owner text COLLATE "C" NOT NULL,
    -- The machine of that directory, for people.
    machine text NOT NULL,
    name text COLLATE "C" NOT NULL,
    -- `copying` while a migration fills it, `live`, `leaving` while one takes it away, `frozen` at the end of that, and
    -- `left` once it is elsewhere.
    state text NOT NULL DEFAULT 'live',
    epoch text NOT NULL,
    words_version text NOT NULL,
    made timestamptz NOT NULL DEFAULT now(),
    UNIQUE (owner, name)
);
CREATE TABLE meta (
    collection int NOT NULL REFERENCES collections ON DELETE CASCADE,
    key text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (collection, key)
);
-- Groups that were changed while their collection is leaving, by any kernel.
CREATE TABLE changes (collection int NOT NULL REFERENCES collections ON DELETE CASCADE, id text COLLATE "C" NOT NULL);
CREATE INDEX ON changes (collection);
CREATE TABLE models (
    model_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint text COLLATE "C" NOT NULL UNIQUE,
    dimensions int NOT NULL
);
CREATE SEQUENCE ids;
CREATE TABLE groups (
    collection int NOT NULL,
    group_id bigint NOT NULL DEFAULT nextval('ids'),
    id text COLLATE "C" NOT NULL,
    title text NOT NULL,
    names text NOT NULL,
    -- As it was given: jsonb has no NUL and not every number.
    metadata json NOT NULL
) PARTITION BY LIST (collection);
-- What filters match: one row per value, several for a list.
CREATE TABLE group_values (
    collection int NOT NULL,
    group_id bigint NOT NULL,
    field text COLLATE "C" NOT NULL,
    word text COLLATE "C",
    number numeric
) PARTITION BY LIST (collection);
CREATE TABLE items (
    collection int NOT NULL,
    item_id bigint NOT NULL DEFAULT nextval('ids'),
    group_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    position int NOT NULL,
    heading text NOT NULL,
    text text NOT NULL,
    metadata json NOT NULL,
    hash bytea NOT NULL,
    embed bool NOT NULL,
    -- The words it is found by: those of the title have weight A, of the heading B, of the text D.
    words tsvector NOT NULL,
    -- How many words these are, with repetitions.
    length int NOT NULL
) PARTITION BY LIST (collection);
CREATE TABLE vectors (
    collection int NOT NULL,
    model_id int NOT NULL,
    item_id bigint NOT NULL,
    vector halfvec NOT NULL,
    -- See `staging`.
    staged bool NOT NULL DEFAULT false
) PARTITION BY LIST (collection);
-- Items that wait for a vector.
CREATE TABLE outbox (
    collection int NOT NULL,
    item_id bigint NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    not_before double precision NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT ''
) PARTITION BY LIST (collection);
"""

FIELD_CHARS, WORD_CHARS = 100, 200
"""How much of a field and of a word is in their indexes."""

PARTITIONS: Final[LiteralString] = """
CREATE TABLE {groups} PARTITION OF groups (
    collection DEFAULT {number}, PRIMARY KEY (group_id), UNIQUE (id)
) FOR VALUES IN ({number});
CREATE TABLE {group_values} PARTITION OF group_values (collection DEFAULT {number}) FOR VALUES IN ({number});
-- Only their beginnings, because an entry of an index has 2.7 kB at most.
CREATE INDEX ON {group_values} (left(field, 100), left(word, 200), group_id);
CREATE INDEX ON {group_values} (left(field, 100), number, group_id);
CREATE INDEX ON {group_values} (group_id);
-- The uniqueness is checked at COMMIT, because a piece may take the key of another one that goes.
CREATE TABLE {items} PARTITION OF items (
    collection DEFAULT {number}, PRIMARY KEY (item_id), UNIQUE (group_id, key) DEFERRABLE INITIALLY DEFERRED
) FOR VALUES IN ({number});
CREATE INDEX ON {items} (hash);
CREATE INDEX ON {items} USING gin (words);
ALTER TABLE {items} ALTER COLUMN words SET STATISTICS 1000;
CREATE TABLE {vectors} PARTITION OF vectors (
    collection DEFAULT {number}, PRIMARY KEY (model_id, item_id)
) FOR VALUES IN ({number});
-- Vectors are random bytes to a compressor, and are read by the thousand: they are in the rows if these fit a page.
ALTER TABLE {vectors} ALTER COLUMN vector SET STORAGE EXTERNAL;
ALTER TABLE {vectors} SET (toast_tuple_target = 8160);
CREATE TABLE {outbox} PARTITION OF outbox (collection DEFAULT {number}, PRIMARY KEY (item_id)) FOR VALUES IN ({number});
CREATE INDEX ON {outbox} (not_before, item_id);
"""
