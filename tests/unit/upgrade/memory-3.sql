-- After memory-2.sql: what version 3 added, and what `linckia sync` needs of these memories.
CREATE TABLE forgotten(id TEXT PRIMARY KEY, at_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE corrected(id TEXT PRIMARY KEY, at_ns INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER corrected_departs AFTER DELETE ON memory BEGIN
    DELETE FROM corrected WHERE id=OLD.id;
END;
INSERT INTO forgotten VALUES('cccccccccccc', 6000000000);
INSERT INTO corrected VALUES('aaaaaaaaaaaa', 5000000000);
PRAGMA user_version=3;
