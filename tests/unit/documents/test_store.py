"""An added document is there under each of its paths, once; a deleted one is gone; a restored one stays inside."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.change import DocumentsPutBegin, DocumentsPutCommit, DocumentsPutPiece
from proto.ops.documents.reading import DocumentsGet, DocumentsVerify, DocumentsVersions
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete, DocumentsRestore, DocumentsUpdate
from services.documents.operations.listing import (
    DocumentsList,
    DocumentsListCollections,
    DocumentsListSnapshots,
    DocumentsStatus,
    SortBy,
)
from services.documents.operations.sessions import SessionPin, SessionStart, SessionStop, SessionUnpin
from services.documents.operations.versions import DocumentsVersion
from services.documents.store.databases import Store
from tests.unit.documents.rig import add_text, documents, listed, tree
from tests.waiting import until


async def test_each_path_of_one_content_keeps_its_own_row(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        first = await add_text(bench, "a.txt", "the same", tags=["one"])
        second = await add_text(bench, "b.txt", "the same")
        assert first.hash == second.hash == hashlib.sha256(b"the same").hexdigest()
        assert (first.is_new, second.is_new) == (True, False)
        assert [(one.path, one.tags) for one in await listed(bench)] == [("a.txt", ["one"]), ("b.txt", [])]
        got = await bench.call(DocumentsGet(hash=f"sha256:{first.hash}"))
        assert got.paths == ["a.txt", "b.txt"]
        status = await bench.call(DocumentsStatus())
        assert (status.total_objects, status.total_bytes, status.unique_blocks) == (2, 16, 1)
        assert (status.deduplicated_bytes, status.dedup_ratio) == (8, 0.5)
        await bench.call(DocumentsDelete(name="a.txt"))
        assert (await bench.call(DocumentsGet(hash=first.hash, include_content=True))).content == "the same"
        await bench.call(DocumentsDelete(name="b.txt"))
        with pytest.raises(OperationError, match="not found"):
            await bench.call(DocumentsGet(hash=first.hash))
        assert (await bench.call(DocumentsStatus())).unique_blocks == 0


async def test_a_text_that_is_stored_already_leaves_no_work_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def trace(_: object, statement: str, __: object) -> bool:
        begun.extend([statement] if statement.startswith("BEGIN") else [])
        return True

    hook = lambda connection: setattr(connection, "exec_trace", trace)  # noqa: E731
    monkeypatch.setattr(apsw, "connection_hooks", [hook])
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "the same", tags=["one"])
        transactions = 0
        for _ in range(20):
            begun.clear()
            again = await add_text(bench, "a.txt", "the same", tags=["one"])
            assert (again.documents_unchanged, again.is_new) == (1, False)
            await trio.testing.wait_all_tasks_blocked(0.01)
            transactions += len(begun)
        # One each; what the first add has left may still be delivered meanwhile.
        assert transactions < 40
        # A new tag is work for the search.
        begun.clear()
        await add_text(bench, "a.txt", "the same", tags=["two"])
        await until(lambda: _is(len(begun) > 1))


async def _is(condition: bool) -> bool:
    return condition


async def test_a_path_added_again_has_the_new_content_and_keeps_its_metadata(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "old", tags=["kept"], metadata={"by": "Jane"})
        again = await add_text(bench, "a.txt", "new", metadata=["state=draft=1"])
        assert (again.documents_added, again.documents_updated) == (0, 1)
        (document,) = await listed(bench)
        assert (document.tags, document.metadata) == (["kept"], {"by": "Jane", "state": "draft=1"})
        assert (await bench.call(DocumentsGet(path="a.txt", include_content=True))).content == "new"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("abc1234", "too short"),
        ("zzzzzzzzz", "not a hexadecimal SHA-256"),
        ("0" * 64, "not found"),
        ("f" * 65, "not a hexadecimal SHA-256"),
    ],
)
async def test_a_malformed_hash_is_refused(tmp_path: Path, given: str, message: str) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "text")
        with pytest.raises((InvalidParams, OperationError), match=message) as caught:
            await bench.call(DocumentsGet(hash=given))
        assert caught.value.failure.field == "hash"


async def test_an_ambiguous_name_is_an_error_that_counts(tmp_path: Path) -> None:
    tree(tmp_path / "root", {"x/readme.md": "one", "y/readme.md": "two"})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        with pytest.raises(OperationError, match="ambiguous: 2 documents"):
            await bench.call(DocumentsGet(name="readme.md"))
        assert (await bench.call(DocumentsGet(name="y/readme.md", include_content=True))).content == "two"


async def test_a_directory_is_added_by_its_rules(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(
        root,
        {
            ".gitignore": "*.log\nbuild/\n!keep.log\n",
            "a.py": "a",
            "b.log": "b",
            "keep.log": "k",
            "build/out.py": "o",
            "src/c.py": "c",
            "src/d.txt": "d",
            ".git/config": "g",
        },
    )
    (root / "link.py").symlink_to("/etc/passwd")
    async with documents(tmp_path) as bench:
        answer = await bench.call(DocumentsAdd(path=str(root), collection="code", snapshot_label="first"))
        paths = {one.path.removeprefix(f"{root}/") for one in await listed(bench)}
        assert paths == {".gitignore", "a.py", "keep.log", "src/c.py", "src/d.txt"}
        assert (answer.files, answer.skipped, answer.failed) == (5, 1, [])
        (snapshot,) = (await bench.call(DocumentsListSnapshots())).snapshots
        assert (snapshot.id, snapshot.label, snapshot.files) == (answer.snapshot_id, "first", 5)
        (collection,) = (await bench.call(DocumentsListCollections())).collections
        assert (collection.name, collection.documents) == ("code", 5)
        again = await bench.call(DocumentsAdd(path=str(root), include=["*.py"], exclude=["src/*"]))
        assert (again.files, again.documents_unchanged) == (1, 1)
        shallow = await bench.call(DocumentsAdd(path=str(root), recursive=False))
        assert shallow.files == 3


async def test_generated_files_are_left_out_with_a_notice_unless_switched_off(tmp_path: Path) -> None:
    root = tmp_path / "root"
    kept = {"a.py": "a", "kept/.linckiaignore": "!node_modules/\n", "kept/node_modules/k.js": "k"}
    made = {"node_modules/x/y.js": "y", "src/node_modules/z.js": "z", "src/__pycache__/c.pyc": "c", ".venv/p.py": "p"}
    tree(root, {**kept, **made, ".git/config": "g"})
    async with documents(tmp_path) as bench:
        answer = await bench.call(DocumentsAdd(path=str(root)))
        assert {one.path.removeprefix(f"{root}/") for one in await listed(bench)} == set(kept)
        assert answer.ignored == {".git": 1, ".venv": 1, "__pycache__": 1, "node_modules": 2}
        whole = await bench.call(DocumentsAdd(path=str(root), no_ignore=True))
        assert (whole.files, whole.ignored) == (len(kept) + len(made), {".git": 1})
    async with documents(tmp_path / "other", default_ignores=False) as bench:
        tree(tmp_path / "other/root", made)
        assert (await bench.call(DocumentsAdd(path=str(tmp_path / "other/root")))).files == len(made)


async def test_only_what_is_below_a_root_can_be_added(tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    async with documents(tmp_path) as bench:
        (tmp_path / "root" / "way").symlink_to(outside)
        for path in (str(outside), str(tmp_path / "root" / "way"), "../secret.txt", "/etc"):
            with pytest.raises(InvalidParams, match="not below a root"):
                await bench.call(DocumentsAdd(path=path))
        with pytest.raises(OperationError, match="File not found"):
            await bench.call(DocumentsAdd(path=str(tmp_path / "root" / "nothing")))
        with pytest.raises(InvalidParams, match="download"):
            await bench.call(DocumentsAdd(url="https://example.org/"))
        with pytest.raises(InvalidParams, match="`path`"):
            await bench.call(DocumentsAdd())
        assert not await listed(bench)


@pytest.mark.slow
async def test_large_contents_are_cut_into_chunks_that_versions_share(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(9_000_000)
    other = data[:4_000_000] + b"inserted" + data[4_000_000:]
    async with documents(tmp_path) as bench:
        tree(tmp_path / "root", {"a.bin": data, "b.bin": other})
        added = await bench.call(DocumentsAdd(path="a.bin"))
        assert added.hash == hashlib.sha256(data).hexdigest()
        await bench.call(DocumentsAdd(path="b.bin"))
        status = await bench.call(DocumentsStatus())
        assert status.deduplicated_bytes > 8_000_000
        await bench.call(DocumentsGet(path=str(tmp_path / "root" / "b.bin"), outputPath="out/copy.bin"))
        assert (tmp_path / "root" / "out" / "copy.bin").read_bytes() == other
        assert (await bench.call(DocumentsVerify())).damaged == []
        await bench.call(DocumentsDelete(name="b.bin"))
        assert (await bench.call(DocumentsVerify())).damaged == []


async def test_content_comes_in_pieces_that_end_between_characters(tmp_path: Path) -> None:
    text = "ä" * 1000 + "€" * 1000
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", text)
        whole, offset = "", 0
        while True:
            got = await bench.call(DocumentsGet(name="a.txt", include_content=True, offset=offset, length=700))
            assert got.content is not None
            assert got.content_length is not None
            assert got.content_encoding == "utf-8"
            whole += got.content
            offset += got.content_length
            if not got.content_truncated:
                break
        assert whole == text
        with pytest.raises(InvalidParams, match="offset"):
            await bench.call(DocumentsGet(name="a.txt", include_content=True, offset=10**6))


async def test_listing_filters_sorts_and_pages(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        for number in range(10):
            await add_text(
                bench, f"n{number}.{'md' if number % 2 else 'txt'}", "x" * (20 - number), tags=[f"t{number % 3}"]
            )
        assert len(await listed(bench, extension="md")) == 5
        assert [one.name for one in await listed(bench, pattern="n[0-2].*")] == ["n0.txt", "n1.md", "n2.txt"]
        assert len(await listed(bench, tags=["t0"], extension=".txt")) == 2
        assert [one.name for one in await listed(bench, recent=2)] == ["n9.md", "n8.txt"]
        by_size = await listed(bench, sort_by=SortBy.SIZE, sort_order="asc")
        assert [one.size for one in by_size] == sorted(one.size for one in by_size)
        seen: list[str] = []
        page = await bench.call(DocumentsList(limit=3, sort_by=SortBy.NAME, paths_only=True))
        while True:
            assert page.total == 10
            seen += page.paths or []
            if page.next_offset is None:
                break
            page = await bench.call(
                DocumentsList(limit=3, sort_by=SortBy.NAME, paths_only=True, offset=page.next_offset)
            )
        assert seen == sorted(one.path for one in await listed(bench))


async def test_update_changes_metadata_and_tags_of_exactly_the_named(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "notes.md", "one", tags=["old"])
        await add_text(bench, "more/notes.md", "two")
        answer = await bench.call(
            DocumentsUpdate(name="notes.md", metadata=["status=a=b"], tags=["new"], remove_tags=["old"])
        )
        # Both have the name; the path of the first is its name, which is the closer match.
        assert answer.matched == 1
        (first,) = await listed(bench, path="notes.md", metadata={"status": "a=b"})
        assert (first.tags, first.metadata) == (["new"], {"status": "a=b"})
        with pytest.raises(InvalidParams, match="key=value"):
            await bench.call(DocumentsUpdate(name="notes.md", metadata=["nonsense"]))
        with pytest.raises(OperationError, match="not found"):
            await bench.call(DocumentsUpdate(name="no.md", tags=["x"]))


async def test_delete_previews_its_effect_first(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        for name in ("a.tmp", "d/b.tmp", "c.txt"):
            await add_text(bench, name, name)
        would = await bench.call(DocumentsDelete(name="*.tmp", dry_run=True))
        assert (would.count, len(await listed(bench))) == (2, 3)
        done = await bench.call(DocumentsDelete(name="*.tmp"))
        assert {one.path for one in done.deleted} == {"a.tmp", "d/b.tmp"}
        with pytest.raises(OperationError, match="Nothing to delete"):
            await bench.call(DocumentsDelete(name="*.tmp"))
        with pytest.raises(InvalidParams, match="`name`"):
            await bench.call(DocumentsDelete())


async def test_restore_brings_a_snapshot_back_and_never_writes_outside(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"src/a.py": "one", "src/sub/b.py": "two", "src/c.txt": "three"})
    os.chmod(root / "src/a.py", 0o755)
    async with documents(tmp_path) as bench:
        first = await bench.call(DocumentsAdd(path="src", collection="code"))
        (root / "src/a.py").write_text("changed")
        await bench.call(DocumentsAdd(path="src"))
        await bench.call(DocumentsDelete(name="c.txt"))
        answer = await bench.call(DocumentsRestore(snapshot_id=first.snapshot_id, output_directory="out"))
        assert (answer.files_restored, answer.skipped) == (3, 0)
        assert (root / "out/a.py").read_text() == "one"
        assert (root / "out/a.py").stat().st_mode & 0o777 == 0o755
        assert (root / "out/sub/b.py").read_text() == "two"
        again = await bench.call(DocumentsRestore(snapshot_id=first.snapshot_id, output_directory="out"))
        assert (again.files_restored, again.skipped) == (0, 3)
        (root / "out/sub/b.py").unlink()
        (root / "out/sub").rmdir()
        (root / "out/sub").symlink_to(tmp_path)
        linked = await bench.call(
            DocumentsRestore(snapshot_id=first.snapshot_id, output_directory="out", overwrite=True)
        )
        assert (linked.files_restored, linked.skipped) == (2, 1)
        assert not (tmp_path / "b.py").exists()
        await add_text(bench, "../../evil.txt", "evil", collection="bad")
        await add_text(bench, "good.txt", "good", collection="bad")
        bad = await bench.call(DocumentsRestore(collection="bad", output_directory="bad"))
        assert (bad.files_restored, bad.skipped) == (1, 1)
        assert sorted(path.name for path in (root / "bad").iterdir()) == ["good.txt"]
        assert not (tmp_path / "evil.txt").exists()
        with pytest.raises(InvalidParams, match="not below a root"):
            await bench.call(DocumentsRestore(collection="bad", output_directory=str(tmp_path)))
        with pytest.raises(InvalidParams, match="`collection` or `snapshot_id`"):
            await bench.call(DocumentsRestore(output_directory="x"))


async def test_a_content_that_a_snapshot_holds_is_kept_until_the_snapshot_goes(tmp_path: Path) -> None:
    tree(tmp_path / "root", {"src/a.txt": "held"})
    async with documents(tmp_path) as bench:
        added = await bench.call(DocumentsAdd(path="src"))
        gone = await bench.call(DocumentsDelete(name="a.txt"))
        assert gone.kept_by_snapshots == 1
        assert (await bench.call(DocumentsStatus())).unique_objects == 1
        await bench.call(DocumentsDelete(snapshot_id=added.snapshot_id))
        assert (await bench.call(DocumentsStatus())).unique_objects == 0


async def test_an_upload_is_there_once_it_is_committed(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(5_000_000)
    async with documents(tmp_path) as bench:
        begun = await bench.call(DocumentsPutBegin(path="https://example.org/data.bin", tags=["web"]))
        step = 1024 * 1024
        for offset in range(0, len(data), step):
            for _ in range(2):
                # A piece sent twice, as after an answer that was lost, counts once.
                await bench.call(
                    DocumentsPutPiece(upload_id=begun.upload_id, offset=offset, data=data[offset : offset + step])
                )
        assert not await listed(bench)
        digest = hashlib.sha256(data).hexdigest()
        commit = DocumentsPutCommit(upload_id=begun.upload_id, size=len(data), sha256=digest)
        first = await bench.call(commit)
        assert (first.hash, await bench.call(commit)) == (digest, first)
        (document,) = await listed(bench)
        assert (document.path, document.name, document.tags) == ("https://example.org/data.bin", "data.bin", ["web"])


async def test_a_session_marks_what_is_added_with_it_and_nothing_else(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        session = await bench.call(SessionStart(label="review"))
        other = await bench.call(SessionStart(name="another"))
        await add_text(bench, "nobody.txt", "added by a client that has no session")
        await add_text(bench, "during.txt", "during", session="review")
        assert [one.path for one in await listed(bench, session="review")] == ["during.txt"]
        assert [one.session for one in await listed(bench)] == [None, session.session_id]
        with pytest.raises(OperationError, match="session 'third' was never started"):
            await add_text(bench, "x.txt", "x", session="third")
        assert (await bench.call(SessionPin(path="*.txt"))).updated == 2
        assert len(await listed(bench, tags=["pinned"])) == 2
        assert (await bench.call(SessionUnpin(path="nobody.txt"))).updated == 1
        assert len(await listed(bench, tags=["pinned"])) == 1
        with pytest.raises(OperationError, match="2 sessions are open"):
            await bench.call(SessionStop())
        await bench.call(SessionStop(session_id=other.session_id))
        stopped = await bench.call(SessionStop())
        assert (stopped.session_id, stopped.documents) == (session.session_id, 1)
        with pytest.raises(OperationError, match="no session is open"):
            await bench.call(SessionStop())
        assert len(await listed(bench, session=session.session_id)) == 1


async def test_documents_added_between_start_and_stop_carry_the_session(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:

        async def add(name: str, client: str, to: str | None = None) -> str | None:
            await bench.call(DocumentsAdd(name=name, content=name, session=to), session=client)
            (found,) = [one for one in await listed(bench) if one.name == name]
            return found.session

        outer = await bench.call(SessionStart(label="outer"), session="a")
        others = await bench.call(SessionStart(label="others"), session="b")
        assert await add("1.txt", "a") == outer.session_id
        assert await add("2.txt", "b") == others.session_id
        assert await add("3.txt", "") is None
        assert await add("4.txt", "c") is None
        assert await add("5.txt", "a", to="others") == others.session_id
        inner = await bench.call(SessionStart(label="inner"), session="a")
        assert await add("6.txt", "a") == inner.session_id
        upload = await bench.call(DocumentsPutBegin(path="https://example.org/7.txt"), session="a")
        await bench.call(DocumentsPutPiece(upload_id=upload.upload_id, offset=0, data=b"7"), session="a")
        await bench.call(DocumentsPutCommit(upload_id=upload.upload_id, size=1), session="a")
        await bench.stop("documents")
        await bench.start("documents")
        assert await add("8.txt", "a") == inner.session_id
        stopped = await bench.call(SessionStop(), session="a")
        assert (stopped.label, stopped.documents) == ("inner", 3)
        assert await add("9.txt", "a") == outer.session_id
        await bench.call(SessionStop(label="outer"), session="b")
        assert await add("10.txt", "a") is None
        assert [one.name for one in await listed(bench, session="inner")] == ["6.txt", "7.txt", "8.txt"]


async def test_memory_is_returned_even_before_the_first_read_and_reading_continues(tmp_path: Path) -> None:
    store = Store(tmp_path)
    try:
        await store.give_back()
        for _ in range(2):
            assert await store.read(lambda db: db.execute("SELECT 1").fetchall()) == [(1,)]
            await store.give_back()
    finally:
        store.close()


async def test_a_version_that_only_a_snapshot_has_is_read_in_parts(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        root = tmp_path / "root"
        for text in ("first ä text", "second text"):
            tree(root, {"a.txt": text, "b.bin": b"\xff\x00\xfe"})
            await bench.call(DocumentsAdd(path=str(root)))
        new, old = (await bench.call(DocumentsVersions(path=str(root / "a.txt")))).versions
        with pytest.raises(OperationError, match="not found"):
            await bench.call(DocumentsGet(hash=old.hash))
        assert (await bench.call(DocumentsVersion(hash=new.hash))).content == "second text"
        # A character is not cut.
        part = await bench.call(DocumentsVersion(hash=old.hash, length=7))
        assert (part.content, part.next_offset, part.size) == ("first ", 6, 13)
        assert part.next_offset is not None
        rest = await bench.call(DocumentsVersion(hash=old.hash, offset=part.next_offset))
        assert (rest.content, rest.next_offset, rest.encoding) == ("ä text", None, "utf-8")
        (other,) = (await bench.call(DocumentsVersions(path=str(root / "b.bin")))).versions
        assert (await bench.call(DocumentsVersion(hash=other.hash))).encoding == "base64"
        with pytest.raises(OperationError, match="no stored content"):
            await bench.call(DocumentsVersion(hash="0" * 64))
