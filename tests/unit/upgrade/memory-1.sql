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
-- Each time that it was said, in whatever words.
CREATE TABLE said(
    memory INTEGER NOT NULL, at_ns INTEGER NOT NULL, text TEXT NOT NULL,
    source TEXT NOT NULL, session TEXT NOT NULL, client TEXT NOT NULL
);
CREATE INDEX said_memory ON said(memory, at_ns);
CREATE INDEX said_session ON said(session) WHERE session <> '';
-- Both ways round.
CREATE TABLE conflict(one INTEGER NOT NULL, other INTEGER NOT NULL, PRIMARY KEY(one, other)) WITHOUT ROWID;

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
    DELETE FROM conflict WHERE one=OLD.number OR other=OLD.number;
END;
CREATE INDEX conflict_other ON conflict(other);
INSERT INTO memory(id, scope, owner, place, text, folded, tags, at_ns, expires_ns) VALUES
    ('aaaaaaaaaaaa', 'user', '', 'user', 'Deployment is enabled', 'deployment is enabled', '["ops"]', 3000000000, NULL),
    ('bbbbbbbbbbbb', 'user', '', 'user', 'The office is in Kiel', 'the office is in kiel', '[]', 5000000000, NULL),
    ('cccccccccccc', 'user', '', 'user', 'The office is in Ulm', 'the office is in ulm', '[]', 4000000000, NULL);
-- The second and third sayings of the first were merged into it; the first saying of the second was replaced.
INSERT INTO said VALUES
    (1, 1000000000, 'Deployment is enabled', 'a', '', ''),
    (1, 2000000000, 'Deployment is disabled', 'b', '', ''),
    (1, 3000000000, 'deployment is DISABLED.', 'c', '', ''),
    (2, 1000000000, 'The office is in Bonn', '', '', ''),
    (2, 5000000000, 'The office is in Kiel', '', '', ''),
    (3, 4000000000, 'The office is in Ulm', '', '', '');
INSERT INTO conflict VALUES(2, 3), (3, 2);
DELETE FROM outbox;
PRAGMA user_version=1;
