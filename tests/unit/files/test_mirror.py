"""The copy in memory answers what the tables answer, whatever is asked and whatever has changed."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
import trio

from proto.ops.files_resources import MODES
from services.files import times
from services.files.column_cache import mirror as mirror_module
from services.files.column_cache.held import Held
from services.files.column_cache.mirror import Mirror
from services.files.index.invalidations import Touched
from services.files.index.scan import Scan
from services.files.index.tree import Edit, below, find
from services.files.paths import as_folder
from services.files.query import entries
from services.files.query.entries import BY_PATH, Order, Select
from services.files.query.filters import has_extension, is_kind
from services.files.query.matching import COLUMNS, Condition, between, text_matches
from services.files.sets import resources, sets, sums
from services.files.space import space
from services.files.store.database import Database
from services.files.store.rows import fetch_all
from services.files.store.schema import KINDS
from tests.unit.files.rig import change_tree, make_tree, write

KELVIN, LONG_S = "\u212a", "\u017f"
NAMES = (
    "Straße.TXT", "ÜBUNG", "übung.tar.gz", f"{KELVIN}elvin.txt", f"long{LONG_S}.md", "a\nb", "100%_a", ".x",
    "日本 語.jpg",
)  # fmt: skip


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few entries are as many as very many."""
    monkeypatch.setattr(entries, "LEAST", 0)
    monkeypatch.setattr(space, "LEAST", 0)


class Index:
    """A tree, its index, and the copy of that."""

    def __init__(self, root: Path, database: Database, mirror: Mirror) -> None:
        self.root = root
        self.database = database
        self.mirror = mirror

    async def scan(self) -> None:
        await trio.to_thread.run_sync(Scan(self.database, str(self.root), Touched(), None).run)

    async def make_sets(self, chance: random.Random) -> None:
        """Two that share entries, of which one may be made anew."""

        def change(db: apsw.Connection) -> None:
            ids = [id_ for (id_,) in fetch_all(db, "SELECT id FROM node")]
            for name, share in (("one", 0.7), ("two", 0.5)):
                set_id = sets.make(db, name)
                sets.remove(db, set_id, [id_ for id_ in ids if chance.random() < 0.2])
                sets.add(db, set_id, [id_ for id_ in ids if chance.random() < share])

        await self.database.write(change)

    async def compare(self, wanted: dict[str, tuple[list[Condition], Order]]) -> None:
        """All of it, from the copy and from the tables, in one state."""

        def both(db: apsw.Connection, held: Held | None) -> None:
            assert held is not None
            assert set(held.columns.ids[held.columns.there()].tolist()) == {
                id_ for (id_,) in fetch_all(db, "SELECT id FROM node")
            }
            one, two = (sets.find(db, name) for name in ("one", "two"))
            for name, (conditions, ordering) in wanted.items():
                for among in (None, [one], [one, two]) if ordering != BY_PATH else ([one, two],):
                    select = Select(conditions, among)
                    for limit, offset in ((1000, 0), (5, 3)) if ordering != BY_PATH else ((1000, 0),):
                        count, size, rows = select.first(db, held, ordering, limit=limit, offset=offset)
                        by_tables = select.first(db, None, ordering, limit=limit, offset=offset)
                        found = [count, size, *rows]
                        assert found == [*by_tables[:2], *by_tables[2]], (name, among, limit, offset)
            for metric in ("size", "count", "files", "directories"):
                for parts in ([[one]], [[one], [two]], [[two, one], [one]]):
                    assert held.sums(parts, metric) == sums.by_part(db, parts, metric), (metric, parts)

        await self.mirror.read(both)


@asynccontextmanager
async def indexed(folder: Path, chance: random.Random) -> AsyncIterator[Index]:
    """A tree of all kinds of names, in the index and in memory."""
    root = folder / "root"
    make_tree(root, chance, 150)
    for name in NAMES:
        (root / name).write_text(name)
        (root / f"dir {name}").mkdir()
        (root / f"dir {name}" / "inside.TXT").write_text("x")
    write(os.fsencode(root) + b"/\xff\xfe.bin", b"bytes")
    database = await trio.to_thread.run_sync(Database, folder / "files.db")
    try:
        async with trio.open_nursery() as nursery:
            mirror = Mirror(database)
            nursery.start_soon(mirror.run)
            index = Index(root, database, mirror)
            await index.scan()
            await index.make_sets(chance)
            # It hears only once it runs.
            await trio.testing.wait_all_tasks_blocked()
            mirror.want(None)
            await mirror.made.wait()
            yield index
            mirror.close()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.close)


def questions(root: Path, now_ns: int) -> dict[str, tuple[list[Condition], Order]]:
    """Every kind of condition and order."""
    found: dict[str, tuple[list[Condition], Order]] = {}
    texts = (
        "a", "X", ".txt", "übung", "ÜB", "strasse", "k", "S.MD", KELVIN, "/", "r/", "/a", "dir 日", "100%_", "TXT/",
        str(root), f"{root}/", f"{root}/dir Straße.TXT/IN", "root/a", "inside.txt", "/inside.TXT", "", "\n",
    )  # fmt: skip
    patterns = ("*.txt", "*a*", "/*/root/?*", "*[ab]1*", "[!a]*", "*ÜBUNG*", "a\nb", f"{root}/*.TXT", "*K*", "**")
    regexes = (
        r"\.txt$", "^a", "s", "(?i)TXT", r"ü|a\d", "[^a]b?", r"dir .*\.tar", r"\d{2,}", "in(side)?", "x*", r"\x41",
        "[[:alpha:]]1",
    )  # fmt: skip
    for mode, given in [(mode, text) for mode in MODES[:3] for text in texts] + [
        *(("glob", text) for text in patterns), *(("regex", text) for text in regexes)
    ]:  # fmt: skip
        for case in (True, False):
            for field in ("path", "name", "parent", "extension", "kind"):
                condition = text_matches(field, given, mode, case_sensitive=case)
                found[f"{field} {mode} {given} {case}"] = [condition], BY_PATH
    orders = [
        Order(field, desc)
        for field in ("name", "path", "size", "mtime", "ctime", "disk_size", "depth", "added_at", "links", "inode")
        for desc in (True, False)
    ]
    found.update({f"order {order}": ([], order) for order in orders if order != Order("path", True)})
    found.update({f"depth {n}": (between("depth", n, n + 1), BY_PATH) for n in range(5)})
    found["range"] = [*between("size", 1, 9_999), *between("mtime", None, now_ns)], Order("mtime", True)
    found["kind"] = [is_kind("symlink")], Order("name")
    found.update({f"extension {e}": ([has_extension(e)], BY_PATH) for e in ("txt", ".TAR.GZ", "", "jpg")})
    for field, value in (
        ("name", "inside.TXT"), ("path", f"{root}/ÜBUNG"), ("path", str(root)), ("parent", f"{root}/dir .x"),
        ("size", 10),
        ("links", 2), ("kind", "directory"), ("path", "/"), ("parent", "/"),
    ):  # fmt: skip
        found[f"is {field} {value}"] = [resources.equals(field, value)], BY_PATH
    return found


async def test_the_copy_answers_as_the_tables_do(tmp_path: Path) -> None:
    async with indexed(tmp_path, random.Random(1)) as index:
        await index.compare(questions(index.root, 2**62))


async def test_the_copy_follows_whatever_is_written(tmp_path: Path) -> None:
    chance = random.Random(2)
    some = ("name contains a False", "path contains r/ True", "order Order(field='name', descending=True)", "range")
    async with indexed(tmp_path, chance) as index:
        every = questions(index.root, 2**62)
        asked = {name: every[name] for name in some}
        await index.compare(asked)
        held = index.mirror.made
        for step in range(6):
            await trio.to_thread.run_sync(change_tree, index.root, chance, 15)
            (index.root / f"new{step}").mkdir()
            (index.root / f"new{step}" / "Ä.txt").write_text("x")
            await index.scan()

            def rename(db: apsw.Connection, step: int = step) -> None:
                # In the index alone: the entries keep their ids, and all below gets other paths.
                edit, folder = Edit(db, 1), find(db, f"{index.root}/new{step}")
                above = find(db, str(index.root))
                assert folder is not None
                assert above is not None
                edit.move(folder, above.id, f"renamed ü {step}")
                edit.finish()

            await index.database.write(rename)
            await index.compare(asked)
            if step % 2:
                await index.make_sets(chance)
            await index.compare(asked)
        await index.compare(dict(chance.sample(sorted(every.items(), key=str), 100)))
        assert index.mirror.made is held
        assert held.is_set()


async def test_what_is_undone_is_not_in_the_copy(tmp_path: Path) -> None:
    async with indexed(tmp_path, random.Random(3)) as index:

        def fail(db: apsw.Connection) -> None:
            db.execute("UPDATE entry SET name = 'other' || id, size = 77 WHERE kind = 0")
            raise RuntimeError("undone")

        with pytest.raises(RuntimeError, match="undone"):
            await index.database.write(fail)
        await index.compare({"size": (between("size", 77, 77), BY_PATH)})


async def test_space_is_summed_up_as_the_tables_do(tmp_path: Path) -> None:
    async with indexed(tmp_path, random.Random(4)) as index:
        now = 2_000_000_000 * times.NS

        def age(db: apsw.Connection) -> None:
            for n, (id_,) in enumerate(fetch_all(db, "SELECT id FROM entry WHERE kind = 0")):
                db.execute("UPDATE entry SET mtime = ? WHERE id = ?", (now - n * 30 * times.DAY_NS, id_))

        def both(db: apsw.Connection, held: Held | None) -> None:
            assert held is not None
            some = find(db, f"{index.root}/dir .x")
            assert some is not None
            for path in (str(index.root), f"{index.root}/dir .x", "/"):
                inside = below(as_folder(path))
                edges = [now - days * times.DAY_NS for _, days in space.AGES]
                shares = held.by_extension_and_age(as_folder(path), edges)
                assert sorted(shares) == sorted(space._by_extension_and_age(db, path, now))
                for kind, by in (("file", "size"), ("file", "disk_size"), ("directory", "size")):
                    query = (
                        "SELECT n.id FROM node n WHERE n.kind = ? AND n.folder >= ? AND n.folder < ?"
                        f" ORDER BY {COLUMNS[by]} DESC, n.path"
                    )
                    ids = [id_ for (id_,) in fetch_all(db, query, (KINDS.index(kind), *inside))]
                    assert held.largest(as_folder(path), kind, by, 7, depth=None) == (len(ids), ids[:7])
            direct = [id_ for (id_,) in fetch_all(
                db, "SELECT id FROM node n WHERE kind = 1 AND folder = ? ORDER BY size DESC, path", (f"{index.root}/",)
            )]  # fmt: skip
            assert held.largest(f"{index.root}/", "directory", "size", 1000, depth=1) == (len(direct), direct)

        await index.database.write(age)
        await index.mirror.read(both)


async def test_a_question_that_takes_long_is_answered_from_the_copy_once_it_is_there(tmp_path: Path) -> None:
    runs: list[bool] = []

    def endless(db: apsw.Connection, held: Held | None) -> int:
        runs.append(held is not None)
        if held is not None:
            return held.columns.count
        mirror.want(None)
        return forever(db)

    def forever(db: apsw.Connection) -> int:
        endless_count = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
        return int(fetch_all(db, endless_count)[0][0])

    def wrong(db: apsw.Connection, held: Held | None) -> None:
        raise LookupError("there is no such set")

    async with indexed(tmp_path, random.Random(3)) as index:
        mirror = Mirror(index.database)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror.run)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(LookupError, match="no such set"):
                await mirror.read(wrong)
            with trio.move_on_after(0.2) as patience:
                # Cancelled before anybody wanted the copy.
                await mirror.read(lambda db, held: forever(db))
            assert patience.cancelled_caught
            with trio.fail_after(60):
                count = await mirror.read(endless)
            assert runs == [False, True]
            assert count == await index.database.read(lambda db: fetch_all(db, "SELECT count(*) FROM node")[0][0])
            mirror.close()


async def test_a_pattern_matches_in_the_tables_whatever_its_literal_parts_are(tmp_path: Path) -> None:
    async with indexed(tmp_path, random.Random(5)) as index:

        def both(db: apsw.Connection) -> None:
            for field, column in COLUMNS.items():
                if field not in ("path", "name", "parent", "extension", "kind"):
                    continue
                for pattern in (
                    r"inside\.txt$", "(?i)K", "kelvin", "LONGS", "r/dir ", r"dir .*\.tar", "ü.*gz", "^/.*/root/", "0%",
                ):  # fmt: skip
                    for case in (True, False):
                        found = text_matches(field, pattern, "regex", case_sensitive=case)
                        alone = pattern if case else f"(?i){pattern}"
                        ids = fetch_all(db, f"SELECT id FROM node n WHERE {found.sql}", found.bindings)
                        wanted = fetch_all(db, f"SELECT id FROM node n WHERE matches(?, {column})", (alone,))
                        assert ids == wanted, (field, pattern, case)

        await index.database.read(both)


@pytest.mark.parametrize("there_will_be_a_copy", [True, False])
async def test_a_question_that_calls_python_for_each_row_waits_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there_will_be_a_copy: bool
) -> None:
    monkeypatch.setattr(mirror_module, "MOST_CALLS", 10)
    calls: list[tuple[bool, int]] = []

    def question(db: apsw.Connection, held: Held | None) -> int:
        if held is None:
            mirror.want(None)
        calls.append((held is not None, 0))
        thirty = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 30)"
        for n, _ in enumerate(db.execute(f"{thirty} SELECT matches('1', '' || x) FROM n"), 1):
            calls[-1] = (held is not None, n)
        return calls[-1][1]

    async with indexed(tmp_path, random.Random(6)) as index:
        mirror = Mirror(index.database)
        if not there_will_be_a_copy:
            monkeypatch.setattr(mirror_module, "MOST", 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mirror.run)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60):
                assert await mirror.read(question) == 30
            # Given up at the eleventh; then asked of the copy, or of the tables after all.  That there will be none may
            # be known before the first call.
            assert calls[-1] == (there_will_be_a_copy, 30)
            assert calls[:-1] == [(False, 10)] or (not calls[:-1] and not there_will_be_a_copy)
            mirror.close()
