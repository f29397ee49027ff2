CREATE TABLE link(
    one INTEGER NOT NULL, other INTEGER NOT NULL, is_conflict INTEGER NOT NULL, PRIMARY KEY(one, other)
) WITHOUT ROWID;
CREATE INDEX link_other ON link(other);
CREATE TABLE memory(
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    owner TEXT NOT NULL,
    place TEXT NOT NULL,
    text TEXT NOT NULL,
    folded TEXT NOT NULL,
    tags TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    expires_ns INTEGER,
    UNIQUE(place, folded)
);
CREATE INDEX memory_expires ON memory(expires_ns) WHERE expires_ns IS NOT NULL;
-- Each time that it was said, with the wording used.
CREATE TABLE said(
    memory INTEGER NOT NULL, at_ns INTEGER NOT NULL, text TEXT NOT NULL,
    source TEXT NOT NULL, session TEXT NOT NULL, client TEXT NOT NULL
);
CREATE INDEX said_memory ON said(memory, at_ns);
CREATE INDEX said_session ON said(session) WHERE session <> '';

CREATE TABLE outbox(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE);
CREATE TABLE setting(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER memory_arrives AFTER INSERT ON memory BEGIN
    INSERT OR REPLACE INTO outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER memory_changes AFTER UPDATE ON memory BEGIN
    INSERT OR REPLACE INTO outbox(id) VALUES(NEW.id);
END;
CREATE TRIGGER memory_departs AFTER DELETE ON memory BEGIN
    INSERT OR REPLACE INTO outbox(id) VALUES(OLD.id);
    DELETE FROM said WHERE memory=OLD.number;
    DELETE FROM link WHERE one=OLD.number OR other=OLD.number;
END;
INSERT INTO memory(number, id, scope, owner, place, text, folded, tags, at_ns, expires_ns) VALUES
    (4, 'aaaaaaaaaaaa', 'user', '', 'user', 'The office is in Kiel', 'the office is in kiel', '["ops"]', 5000000000, NULL),
    (7, 'bbbbbbbbbbbb', 'user', '', 'user', 'The office is in Ulm', 'the office is in ulm', '[]', 4000000000, NULL),
    (9, 'cccccccccccc', 'user', '', 'user', 'Forgotten', 'forgotten', '[]', 4000000000, NULL);
INSERT INTO said VALUES
    (4, 1000000000, 'The office is in Bonn', '', '', ''),
    (4, 5000000000, 'The office is in Kiel', 'a', '', ''),
    (7, 4000000000, 'The office is in Ulm', '', '', '');
INSERT INTO link VALUES(4, 7, 1), (7, 4, 1);
DELETE FROM memory WHERE number=9;
DELETE FROM outbox;
PRAGMA user_version=2;
