"""The store's promises one by one: hashes, damage, a lost index, contents in parts, patterns of restore, numbers."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import apsw
import pytest
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.documents.reading import DocumentsGet, DocumentsVerify
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete, DocumentsRestore, DocumentsUpdate
from services.documents.operations.find import DocumentsGrep, DocumentsSearch
from services.documents.operations.listing import DocumentsList, DocumentsStatus
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, listed, tree

# The hashes of these two begin with the same eight digits.
ALIKE = ("text 859", "text 4460", "b30a892c")


async def test_a_hash_may_be_written_in_several_ways_and_an_ambiguous_one_is_counted(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        first = await add_text(bench, "a.txt", ALIKE[0])
        await add_text(bench, "b.txt", ALIKE[1])
        assert first.hash is not None
        for given in (first.hash, f"sha256:{first.hash}", f"sha256-{first.hash}", first.hash[:12].upper()):
            assert (await bench.call(DocumentsGet(hash=given))).path == "a.txt"
            assert (await bench.call(DocumentsSearch(hash=given))).total == 1
            assert (await bench.call(DocumentsUpdate(hash=given, tags=["t"]))).matched == 1
        with pytest.raises((InvalidParams, OperationError), match=r"ambiguous.*2") as caught:
            await bench.call(DocumentsGet(hash=ALIKE[2]))
        assert caught.value.failure.field == "hash"
        assert (await bench.call(DocumentsSearch(hash=ALIKE[2]))).total == 2
        with pytest.raises(LinckiaError, match="ambiguous"):
            await bench.call(DocumentsDelete(hash=ALIKE[2]))
        assert len(await listed(bench)) == 2
        with pytest.raises(InvalidParams, match="`hash`, `name` or `path`"):
            await bench.call(DocumentsGet())


async def test_content_comes_whole_in_part_and_as_a_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"a.bin": b"\xff\x00\x01\x02"})
    async with documents(tmp_path) as bench:
        await add_text(bench, "notes/a.txt", "0123456789")
        bare = await bench.call(DocumentsGet(name="a.txt"))
        assert (bare.content, bare.content_truncated, bare.graph_enabled) == (None, False, False)
        part = await bench.call(DocumentsGet(path="notes/a.txt", include_content=True, offset=3, length=4))
        assert (part.content, part.content_offset, part.content_length) == ("3456", 3, 4)
        assert part.content_truncated
        rest = await bench.call(DocumentsGet(path="notes/a.txt", include_content=True, offset=7))
        assert (rest.content, rest.content_truncated) == ("789", False)
        with pytest.raises(InvalidParams, match="`offset`"):
            await bench.call(DocumentsGet(path="notes/a.txt", include_content=True, offset=11))
        await bench.call(DocumentsAdd(path="a.bin", mimeType="application/x-own"))
        binary = await bench.call(DocumentsGet(name="a.bin", include_content=True))
        assert (binary.content_encoding, binary.mime_type) == ("base64", "application/x-own")
        assert base64.b64decode(binary.content or "") == b"\xff\x00\x01\x02"
        written = await bench.call(DocumentsGet(name="a.txt", outputPath=str(root / "new" / "out.txt")))
        assert written.output_path == str(root / "new" / "out.txt")
        assert (root / "new" / "out.txt").read_text() == "0123456789"
        (root / "link").symlink_to(tmp_path)
        for outside in (str(tmp_path / "x"), "../x", str(root / "link" / "x"), "/etc/x"):
            with pytest.raises(InvalidParams, match="not below a root"):
                await bench.call(DocumentsGet(name="a.txt", outputPath=outside))
        assert not (tmp_path / "x").exists()


async def test_damage_is_an_error_of_the_damaged_document_only(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        good = await add_text(bench, "good.txt", "this one is whole")
        bad = await add_text(bench, "bad.txt", "this one is not: needle")
        await bench.stop("documents")
        (packs,) = (tmp_path / "data").rglob("packs.db")
        with apsw.Connection(str(packs)) as db:
            (data,) = db.execute("SELECT data FROM block WHERE object=2").fetchall()[0]
            assert isinstance(data, bytes)
            db.execute("UPDATE block SET data=? WHERE object=2", (data[:-1] + bytes([data[-1] ^ 1]),))
        db.close()
        await bench.start("documents")
        verified = await bench.call(DocumentsVerify())
        assert len(verified.damaged) == 1
        assert verified.damaged[0].startswith(f"{bad.hash} (bad.txt)")
        with pytest.raises(OperationError, match="damaged"):
            await bench.call(DocumentsGet(name="bad.txt", include_content=True))
        with pytest.raises(OperationError, match="damaged"):
            await bench.call(DocumentsGet(name="bad.txt", outputPath="bad.txt"))
        assert not (tmp_path / "root" / "bad.txt").exists()
        assert (await bench.call(DocumentsGet(hash=good.hash, include_content=True))).content == "this one is whole"
        grep = await bench.call(DocumentsGrep(pattern="needle"))
        assert grep.match_count == 0
        assert "bad.txt" in grep.degraded[0]
        # Adding the same document again does not hide the damage; the stored one can be deleted and stored again.
        await bench.call(DocumentsDelete(name="bad.txt"))
        await add_text(bench, "other.txt", "something else")


@pytest.mark.parametrize("way", ["lost", "damaged"])
async def test_an_index_that_is_lost_is_built_again_from_the_packs(tmp_path: Path, way: str) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.py", "def needle():\n    pass\n")
        await bench.stop("documents")
        for file in (tmp_path / "data").rglob("index.db*"):
            if way == "lost" or not file.name.endswith(".db"):
                file.unlink()
            else:
                file.write_bytes(b"no database" * 1000)
        await bench.start("documents")
        assert await _lines(bench, "needle") == [1]
        verified = await bench.call(DocumentsVerify())
        assert (verified.objects, verified.damaged, verified.problems) == (1, [], [])
        got = await bench.call(DocumentsGet(name="a.py", graph=True))
        assert [node.label for node in got.related] == ["needle"]


async def _lines(bench: Bench, pattern: str) -> list[int]:
    return [match.line_number for match in (await bench.call(DocumentsGrep(pattern=pattern))).matches]


async def test_restore_follows_patterns_dry_run_and_overwrite(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"src/a.py": "a", "src/b.txt": "b", "src/deep/c.py": "c"})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path="src", collection="code"))

        async def restored(**more: object) -> tuple[int, int]:
            params = {"collection": "code", "output_directory": "out", **more}
            answer = await bench.call(DocumentsRestore(**params))  # type: ignore[arg-type]  # as the caller types
            return answer.files_restored, answer.skipped

        assert await restored(dry_run=True) == (3, 0)
        assert not (root / "out").exists()
        assert await restored(include_patterns=["*.py"], exclude_patterns=["deep/*"]) == (1, 0)
        assert sorted(path.name for path in (root / "out").rglob("*")) == ["a.py"]
        (root / "out" / "a.py").write_text("mine")
        assert await restored(dry_run=True) == (2, 1)
        assert await restored() == (2, 1)
        assert (root / "out" / "a.py").read_text() == "mine"
        assert await restored(overwrite=True) == (3, 0)
        assert (root / "out" / "a.py").read_text() == "a"
        for unknown in ({"collection": "none"}, {"collection": None, "snapshot_id": "none"}):
            with pytest.raises(OperationError, match="not found"):
                await restored(**unknown)


async def test_numbers_names_and_choices_follow_the_contract(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        for name, text in (("a.txt", "same"), ("b.txt", "same"), ("c.md", "other")):
            await add_text(bench, name, text, tags=["t"], metadata={"n": 1, "who": "Jane"}, collection="k")
        status = await bench.call(DocumentsStatus(detailed=True, file_types=True))
        assert (status.total_objects, status.total_bytes, status.unique_blocks) == (3, 13, 2)
        assert (status.deduplicated_bytes, status.dedup_ratio) == (4, round(4 / 13, 6))
        assert {(one.type, one.documents) for one in status.file_types or []} == {(".txt", 2), (".md", 1)}
        (document,) = await listed(bench, pattern="*.md", metadata=["n=1"])
        assert document.hash == hashlib.sha256(b"other").hexdigest()
        assert (document.mime_type, document.type, document.size) == ("text/markdown", "text", 5)
        assert (document.metadata, document.collections, document.tags) == ({"n": 1, "who": "Jane"}, ["k"], ["t"])
        assert (await bench.call(DocumentsList(paths_only=True))).paths == ["a.txt", "b.txt", "c.md"]
        assert [one.path for one in await listed(bench, recent=1)] == ["c.md"]
        assert (await bench.call(DocumentsDelete(names=["a.txt", "*.md"], dry_run=True))).count == 2
        assert (await bench.call(DocumentsDelete(tags=["t"], dry_run=True))).count == 3
        gone = await bench.call(DocumentsDelete(hash=document.hash))
        assert (gone.count, gone.deleted[0].path) == (1, "c.md")
        with pytest.raises(InvalidParams, match="`name`"):
            await bench.call(DocumentsAdd(content="x"))
        with pytest.raises(InvalidParams, match="`content`"):
            await bench.call(DocumentsAdd(content="x", name="x", path="x"))


async def test_tags_narrow_a_delete_by_names_and_glob(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        for name, tags in (("a.txt", []), ("b.txt", ["old"]), ("c.md", ["old"]), ("d[1].md", [])):
            await add_text(bench, name, name, tags=tags)
        gone = await bench.call(DocumentsDelete(names=["a.txt", "b.txt", "*.md", "d[1].md"], tags=["old"]))
        assert sorted(one.name for one in gone.deleted) == ["b.txt", "c.md"]


async def test_an_ignore_file_that_is_a_pipe_does_not_block_an_add(tmp_path: Path) -> None:
    tree(tmp_path / "root", {"tree/a.txt": "text"})
    os.mkfifo(tmp_path / "root" / "tree" / ".gitignore")
    async with documents(tmp_path) as bench:
        with trio.fail_after(10):
            assert (await bench.call(DocumentsAdd(path="tree"))).files == 1
