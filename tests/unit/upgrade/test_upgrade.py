"""Data of every earlier schema is opened, migrated and used; a newer one's is refused.

The `.sql` files are what earlier versions of the program had made: their tables, with some rows.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import apsw
import pytest

from kernel import VERSION
from kernel.cli.care import data_format
from proto.control.address import CannotHold
from proto.ops.decode import DOCUMENT_TYPES
from proto.ops.documents.reading import DocumentsGet
from proto.ops.retrieve import RetrieveSearch
from services.approvals.store import SCHEMA as APPROVALS
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete
from services.documents.operations.find import DocumentsGrep
from services.documents.operations.listing import DocumentsList
from services.documents.store import tables as documents_schema
from services.events.event_database import SCHEMA as EVENTS
from services.files.operations.plans import PlanExecute, PlanList
from services.files.operations.queries import QueryList
from services.files.operations.sets import ResourceSetCreate, ResourceSetList
from services.files.store import schema as files_schema
from services.files.store.database import open_database as open_files
from services.files.undo.journal import open_journal
from services.graph import tables as graph
from services.knowledge.note_database import SCHEMA as NOTES
from services.knowledge.note_database import open_database as open_notes
from services.media.cache import SCHEMA as MEDIA
from services.memory.memory_db import SCHEMA as MEMORIES
from services.memory.operations import CompareMemories, Forget, ListMemories, MemoryExport
from services.retrieve.collection_schema import SCHEMA as COLLECTIONS
from services.runtime.database import Database, Kind, Schema, copies
from services.runtime.database.schema import UnknownVersion
from services.tasks.store import SCHEMA as TASKS
from services.transcripts.database import SCHEMA as TRANSCRIPTS
from services.transcripts.operations.conversations import TranscriptHistories, TranscriptList, TranscriptsSearch
from services.transcripts.operations.intake import TranscriptImport, TranscriptImportState
from services.watch.database import WatchDatabase as Watched
from tests.unit.documents.pdfs import pdf_of
from tests.unit.documents.rig import documents
from tests.unit.files.rig import files_service, index
from tests.unit.memory.rig import listed, remembering, say, texts
from tests.unit.transcripts.rig import assistant, payload, post, serving, user
from tests.unit.transcripts.test_search import embedding, has
from tests.waiting import until

HERE = Path(__file__).parent


def build(fixture: str, path: Path, *more: str) -> None:
    """The database of an earlier version."""
    path.parent.mkdir(parents=True)
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for name in (fixture, *more):
            db.execute((HERE / name).read_text()).fetchall()
    path.chmod(0o600)


def version_of(path: Path) -> int:
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return int(db.pragma("user_version"))


async def test_documents_of_version_1_are_read_changed_and_deleted(tmp_path: Path) -> None:
    packs = tmp_path / "data" / "documents" / "packs.db"
    build("packs-1.sql", packs)
    async with documents(tmp_path) as bench:
        note = await bench.call(DocumentsGet(name="note.md", include_content=True))
        assert (note.content, note.tags, note.collections, note.metadata) == (
            "# A note\n", ["kept"], ["mine"], {"by": "hand"}
        )  # fmt: skip
        await bench.call(DocumentsAdd(name="note.md", content="# Changed\n"))
        await bench.call(DocumentsAdd(name="code.py", content="def a():\n    return 1\n"))
        await bench.call(DocumentsDelete(name="note.md"))
        assert [one.name for one in (await bench.call(DocumentsList())).documents] == ["code.py"]
    copy = packs.with_name("packs.db.before-v5")
    assert (version_of(packs), version_of(copy)) == (5, 1)
    with contextlib.closing(apsw.Connection(str(copy))) as db:
        assert db.execute("SELECT name FROM document").fetchall() == [("note.md",)]


def test_documents_without_text_wait_for_extraction_after_the_upgrade() -> None:
    packs = documents_schema.PACKS
    kinds = {
        DOCUMENT_TYPES[".docx"]: documents_schema.TEXT_NONE,
        DOCUMENT_TYPES[".ipynb"]: documents_schema.TEXT_OWN,
        "text/plain": documents_schema.TEXT_OWN,
        "application/zip": documents_schema.TEXT_NONE,
    }
    with contextlib.closing(apsw.Connection(":memory:")) as db:
        packs.apply(db)
        db.pragma("user_version", 2)
        db.execute("ALTER TABLE object DROP COLUMN charset").fetchall()
        insert = "INSERT INTO object(hash, size, chunked, mime, is_text, text_state) VALUES(?, 1, 0, ?, 0, ?)"
        db.executemany(insert, ((mime.encode(), mime, state) for mime, state in kinds.items())).fetchall()
        packs.apply(db)
        query = "SELECT mime FROM object WHERE text_state=? ORDER BY id"
        waiting = [mime for (mime,) in db.execute(query, (documents_schema.TEXT_WAITING,))]
    assert waiting == [DOCUMENT_TYPES[".docx"], DOCUMENT_TYPES[".ipynb"]]


async def test_documents_of_version_3_are_read_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "form.pdf").write_bytes(pdf_of(["The reimburse-", "ment"]))
    (root / "old.txt").write_bytes("Größe\n".encode("latin-1"))
    packs = tmp_path / "data" / "documents" / "packs.db"
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
    with contextlib.closing(apsw.Connection(str(packs))) as db:
        # Version 3 kept texts that are not UTF-8 undecoded.
        db.execute("UPDATE object SET text_state=1 WHERE charset IS NOT NULL").fetchall()
        db.execute("DELETE FROM text WHERE object IN (SELECT id FROM object WHERE text_state=1)").fetchall()
        db.execute("ALTER TABLE object DROP COLUMN charset").fetchall()
        db.pragma("user_version", 3)
    (packs.parent / "index.db").unlink()
    async with documents(tmp_path) as bench:
        for pattern, name in (("reimbursement", "form.pdf"), ("Größe", "old.txt")):

            async def is_found(pattern: str = pattern, name: str = name) -> bool:
                matches = (await bench.call(DocumentsGrep(pattern=pattern))).matches
                return [Path(match.file).name for match in matches] == [name]

            await until(is_found)
        assert (await bench.call(DocumentsGet(name="old.txt"))).text_charset == "cp1252 (detected)"


@pytest.mark.parametrize("version", [1, 2])
async def test_transcripts_of_earlier_versions_are_served_listed_and_added_to(tmp_path: Path, version: int) -> None:
    build(f"transcripts-{version}.sql", tmp_path / "transcripts" / "transcripts.db")
    async with serving(tmp_path) as bench:
        history = (await bench.call(TranscriptHistories())).histories[-1]
        assert [message.content[0].text for message in history.messages] == [
            "Which animal grows back an arm?", "A sea star."
        ]  # fmt: skip
        listed = (await bench.call(TranscriptList(sort="oldest"))).conversations
        assert [one.title for one in listed] == ["Which animal grows back an arm?", "And a leg?"][:version]
        record = json.dumps({"messages": [{"role": "user", "content": "And two legs?"}]})
        part = TranscriptImport(source="/t.jsonl", start=0, position=9, tail="t", records=[record], final=True)
        assert (await bench.call(part)).nodes == 1
        assert len((await bench.call(TranscriptList())).conversations) == version + 1
    copy = tmp_path / "transcripts" / f"transcripts.db.before-v{TRANSCRIPTS.version}"
    assert copy.stat().st_mode & 0o077 == 0


async def test_transcripts_of_version_3_become_conversations_by_session_once_their_files_are_read_again(
    tmp_path: Path,
) -> None:
    build("transcripts-3.sql", tmp_path / "transcripts" / "transcripts.db")
    async with serving(tmp_path) as bench:
        # By their first user turn: those that were recorded for good, those of files until these are there again.
        found = (await bench.call(TranscriptList(sort="tokens"))).conversations
        assert [(one.title, one.turns, one.tokens.input) for one in found] == [
            ("continue", 3, 300), ("And a leg?", 3, 20), ("Which animal grows back an arm?", 3, 20),
        ]  # fmt: skip
        for name, tokens in (("A", 100), ("B", 200)):
            said = {"role": "assistant", "id": f"msg_{name}2", "model": "claude-sonnet-4-5",
                    "content": [{"type": "text", "text": f"On with {name}."}],
                    "usage": {"input_tokens": tokens, "output_tokens": 10}}  # fmt: skip
            records: list[dict[str, object]] = [
                {"uuid": f"{name}1", "parentUuid": None, "type": "user", "message": {
                    "role": "user", "content": "continue"}},
                {"uuid": f"{name}2", "parentUuid": f"{name}1", "type": "assistant", "message": said},
            ]  # fmt: skip
            about = {"sessionId": name, "cwd": f"/home/u/{name}", "timestamp": "2026-09-01T10:00:00.000Z"}
            source = f"/sessions/{name}.jsonl"
            assert (await bench.call(TranscriptImportState(source=source))).position == 0
            texts = [json.dumps(about | record) for record in records]
            part = TranscriptImport(source=source, start=0, position=2, tail="t", records=texts, final=True)
            assert (await bench.call(part)).nodes == 0
        found = (await bench.call(TranscriptList(sort="tokens"))).conversations
        assert [(one.title, one.project, one.turns, one.tokens.input) for one in found] == [
            ("continue", "/home/u/B", 2, 200), ("continue", "/home/u/A", 2, 100),
            ("And a leg?", "/home/u/sea", 3, 20), ("Which animal grows back an arm?", "/home/u/sea", 3, 20),
        ]  # fmt: skip


async def test_transcripts_of_version_4_get_the_titles_and_messages_that_come_with_more_of_their_files(
    tmp_path: Path,
) -> None:
    build("transcripts-4.sql", tmp_path / "transcripts" / "transcripts.db")
    more: list[dict[str, object]] = [
        {"type": "queue-operation", "operation": "enqueue", "timestamp": "2026-09-01T10:00:01Z", "content": "In blue."},
        {"type": "queue-operation", "operation": "remove", "timestamp": "2026-09-01T10:00:02Z"},
        {"uuid": "a2", "parentUuid": "a1", "type": "assistant", "message": {
            "role": "assistant", "id": "m2", "content": [{"type": "text", "text": "A blue sea star."}]}},
        {"type": "custom-title", "customTitle": "Arms"},
    ]  # fmt: skip
    async with serving(tmp_path) as bench:
        assert [one.title for one in (await bench.call(TranscriptList())).conversations] == [
            "Which animal grows back an arm?"
        ]
        records = [json.dumps({"sessionId": "s"} | record) for record in more]
        part = TranscriptImport(source="/s.jsonl", start=2, position=6, tail="u", records=records, final=True)
        assert (await bench.call(part)).nodes == 2
        (one,) = (await bench.call(TranscriptList(query="arms"))).conversations
        assert (one.title, one.turns, one.project) == ("Arms", 4, "/home/u/sea")
        history = (await bench.call(TranscriptHistories())).histories[-1]
        assert [message.content[0].text for message in history.messages] == [
            "Which animal grows back an arm?", "A sea star.", "In blue.", "A blue sea star.",
        ]  # fmt: skip


async def test_turns_of_version_5_are_given_to_the_search_again_and_keep_their_vectors(tmp_path: Path) -> None:
    said = [user("Which animal grows back an arm?"), assistant("A sea star."), user("And a leg?")]
    async with serving(tmp_path, embed=embedding) as bench:
        await post(bench, payload(said, "A crab."))
        await until(lambda: has(bench, groups=4, vectors=4, vectors_waiting=0))
    with contextlib.closing(apsw.Connection(str(tmp_path / "transcripts" / "transcripts.db"))) as db:
        for column in ("machine", "branch"):
            db.execute(f"ALTER TABLE node DROP COLUMN {column}").fetchall()
        db.execute("DROP TRIGGER dropped_returns; DROP TABLE dropped").fetchall()
        db.pragma("user_version", 5)
    (collection,) = (tmp_path / "retrieve").glob("transcripts*.db")
    with contextlib.closing(apsw.Connection(str(collection))) as db:
        db.execute("DELETE FROM group_values WHERE field='after'").fetchall()
        db.execute("UPDATE groups SET metadata=CAST(json_remove(metadata, '$.after') AS BLOB)").fetchall()
    # Nothing can be embedded here.
    async with serving(tmp_path) as bench:

        async def after() -> list[str]:
            result = await bench.call(RetrieveSearch(collection="transcripts", query="animal star leg crab"))
            return [hit.text for hit in result.hits if "after" in hit.group_metadata]

        async def all_are_linked() -> bool:
            return sorted(await after()) == ["A crab.", "A sea star.", "And a leg?"]

        await until(all_are_linked)
        assert await has(bench, groups=4, vectors=4, vectors_waiting=0)
        await post(bench, payload([*said, assistant("A crab."), user("And a tail?")], "A lizard."))
        found = await bench.call(TranscriptsSearch(query="leg"))
        assert found.results[0].preview == "And a leg?"
        assert found.results[0].machine == ""
    assert version_of(tmp_path / "transcripts" / "transcripts.db") == TRANSCRIPTS.version


@pytest.mark.parametrize("fixture", ["files-1.sql", "files-1-last.sql"])
async def test_sets_queries_and_plans_of_version_1_still_work(tmp_path: Path, fixture: str) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "a.txt").write_text("a")
    build(fixture, data / "files" / "files.db")
    async with files_service(data, root) as bench:
        await index(bench, root)
        await bench.call(ResourceSetCreate(name="another"))
        assert [one.name for one in (await bench.call(ResourceSetList())).resource_sets] == ["another", "kept"]
        has_plans = fixture != "files-1.sql"
        assert [one.name for one in (await bench.call(QueryList())).queries] == ["texts"] * has_plans
        assert [one.name for one in (await bench.call(PlanList())).plans] == ["gather"] * has_plans
        if has_plans:
            await bench.call(PlanExecute(name="gather"))
    assert version_of(data / "files" / f"files.db.before-v{files_schema.VERSION}") == 1


def test_ids_of_notes_of_version_1_stay(tmp_path: Path) -> None:
    build("notes-1.sql", tmp_path / "k" / "notes.db")
    with contextlib.closing(open_notes(tmp_path / "k" / "notes.db")) as database, database.snapshot() as db:
        assert db.execute("SELECT id FROM node").fetchall() == [("sea-stars-2",)]


async def test_memories_of_version_1_that_were_merged_by_similarity_are_apart_again(tmp_path: Path) -> None:
    build("memory-1.sql", tmp_path / "memory" / "memory.db")
    async with remembering(tmp_path) as bench:
        memories = {one.text: one for one in await listed(bench)}
        assert set(memories) == {
            "Deployment is enabled", "deployment is DISABLED.", "The office is in Kiel", "The office is in Ulm",
        }  # fmt: skip
        enabled, disabled = memories["Deployment is enabled"], memories["deployment is DISABLED."]
        assert (enabled.at, [said.source for said in enabled.said]) == ("1970-01-01T00:00:01Z", ["a"])
        assert (disabled.at, [said.source for said in disabled.said]) == ("1970-01-01T00:00:03Z", ["c", "b"])
        assert (enabled.similar_to, disabled.similar_to) == ([disabled.id], [enabled.id])
        kiel, ulm = memories["The office is in Kiel"], memories["The office is in Ulm"]
        assert (kiel.conflicts_with, ulm.conflicts_with) == ([ulm.id], [kiel.id])
        assert [said.text for said in kiel.said] == ["", "The office is in Bonn"]
        assert await texts(bench, "disabled") == ["deployment is DISABLED.", "Deployment is enabled"]
    assert version_of(tmp_path / "memory" / f"memory.db.before-v{MEMORIES.version}") == 1


@pytest.mark.parametrize("version", [2, 3])
async def test_older_memories_hold_replace_each_other_and_are_fed_to_the_search_again(
    tmp_path: Path, version: int
) -> None:
    build("memory-2.sql", tmp_path / "memory" / "memory.db", *(["memory-3.sql"] if version == 3 else []))
    async with remembering(tmp_path) as bench:
        ulm, kiel = await listed(bench)
        assert (ulm.text, kiel.text, kiel.tags, len(kiel.said)) == (
            "The office is in Ulm", "The office is in Kiel", ["ops"], 2,
        )  # fmt: skip
        assert (ulm.conflicts_with, kiel.conflicts_with) == ([kiel.id], [ulm.id])
        # The search has the times of old memories too.
        assert set(await texts(bench, "office", as_of="1970-01-01")) == {ulm.text, kiel.text}
        assert await texts(bench, "office", as_of="1970-01-01T00:00:02Z") == [kiel.text]
        bonn = await say(bench, "The office is in Bonn", supersedes=[kiel.id, ulm.id])
        assert await texts(bench, "office") == ["The office is in Bonn"]
        # Numbers of forgotten memories are not used again.
        page = (await bench.call(ListMemories(limit=1))).next_cursor
        assert int(page) == 10
        again = await say(bench, "The office is in Kiel", supersedes=[bonn.id])
        assert again.id not in (kiel.id, bonn.id)
    assert version_of(tmp_path / "memory" / f"memory.db.before-v{MEMORIES.version}") == version


@pytest.mark.parametrize("fixtures", [["memory-1.sql"], ["memory-2.sql"], ["memory-2.sql", "memory-3.sql"]])
async def test_older_memories_have_the_same_tables_and_triggers_as_new_ones(
    tmp_path: Path, fixtures: list[str]
) -> None:
    build(fixtures[0], tmp_path / "old" / "memory" / "memory.db", *fixtures[1:])
    schemas = []
    for name in ("old", "new"):
        async with remembering(tmp_path / name):
            pass
        with contextlib.closing(apsw.Connection(str(tmp_path / name / "memory" / "memory.db"))) as db:
            schemas.append({each: " ".join(sql.split()) for each, sql in db.execute(
                "SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'"
            )})  # fmt: skip
    assert schemas[0] == schemas[1]


async def test_corrections_and_deletions_of_version_3_are_known_to_a_sync(tmp_path: Path) -> None:
    build("memory-2.sql", tmp_path / "memory" / "memory.db", "memory-3.sql")
    async with remembering(tmp_path) as bench:
        carried = {one.text: one for one in (await bench.call(MemoryExport())).memories}
        kiel, ulm = carried["The office is in Kiel"], carried["The office is in Ulm"]
        assert (kiel.corrected_ns, ulm.corrected_ns, kiel.decided_ns) == (5 * 10**9, 0, 0)
        facts = await bench.call(CompareMemories(buckets=list(range(256))))
        (gone,) = [fact.forgotten for fact in facts.facts if fact.forgotten is not None]
        assert (gone.id, gone.at_ns, gone.merged_into) == ("cccccccccccc", 6 * 10**9, "")
        await bench.call(Forget(id=kiel.id))
    with contextlib.closing(apsw.Connection(str(tmp_path / "memory" / "memory.db"))) as db:
        assert db.execute("SELECT count(*) FROM corrected").get == 0


def _item(version: int) -> Schema:
    return Schema(version=version, tables="CREATE TABLE item(name)", migrations={1: "CREATE TABLE more(name)"})


def test_the_copy_is_kept_for_a_week_and_until_a_later_start(tmp_path: Path) -> None:
    path, copy = tmp_path / "t.db", tmp_path / "t.db.before-v2"
    Database(path, _item(1), kind=Kind.SOURCE).close()
    for age_s, is_there in ((0, True), (0, True), (copies.RETENTION_S + 60, False)):
        if age_s:
            os.utime(copy, (copy.stat().st_mtime - age_s,) * 2)
        Database(path, _item(2), kind=Kind.SOURCE).close()
        assert copy.exists() is is_there


def test_a_copy_that_finds_no_room_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    Database(path, _item(1), kind=Kind.SOURCE).close()
    (tmp_path / "t.db.before-v2.part").mkdir()
    with pytest.raises(OSError, match="before-v2"):
        Database(path, _item(2), kind=Kind.SOURCE)
    assert version_of(path) == 1


def test_databases_of_users_are_never_discarded_because_of_their_version(tmp_path: Path) -> None:
    open_files(tmp_path / "files.db").close()
    with contextlib.closing(apsw.Connection(str(tmp_path / "files.db"))) as db:
        db.pragma("user_version", files_schema.VERSION + 1)
    with pytest.raises(
        UnknownVersion, match=f"version {files_schema.VERSION + 1}; this .* reads {files_schema.VERSION}"
    ):
        open_files(tmp_path / "files.db")


def test_an_older_kernel_refuses_the_data_of_a_newer_one(tmp_path: Path) -> None:
    note = tmp_path / "format.json"
    data_format.claim(tmp_path)
    data_format.claim(tmp_path)
    assert json.loads(note.read_text()) == {"format": data_format.FORMAT, "linckia": VERSION}
    newer = json.dumps({"format": data_format.FORMAT + 1, "linckia": "9.1"})
    note.write_text(newer)
    with pytest.raises(CannotHold, match=rf"Linckia 9.1 \(data format {data_format.FORMAT + 1}\).* {VERSION}"):
        data_format.claim(tmp_path)
    assert note.read_text() == newer
    note.write_text("{")
    with pytest.raises(CannotHold, match="cannot read or write"):
        data_format.claim(tmp_path)


def test_the_format_rises_with_every_schema(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "watch.db", lambda: None).database
    of_graph = graph.open_database(tmp_path / "graph.db")
    of_changes = open_journal(tmp_path / "changes.db")
    for database in (watched, of_graph, of_changes):
        database.close()
    of_documents = (documents_schema.PACKS, documents_schema.INDEX)
    fixed = (*of_documents, NOTES, MEDIA, COLLECTIONS, TRANSCRIPTS, MEMORIES, EVENTS, TASKS, APPROVALS)
    versions = [schema.version for schema in fixed] + [files_schema.VERSION]
    versions += [version_of(database.path) for database in (watched, of_graph, of_changes)]
    assert sum(versions) == data_format.FORMAT
