"""Small files that come together share a row of the store: each is read, deleted and damaged alone."""

from __future__ import annotations

import os
import random
from pathlib import Path

import apsw
import pytest

from proto.errors import OperationError
from proto.ops.documents.reading import DocumentsGet, DocumentsVerify
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete, DocumentsRestore
from services.documents.operations.find import DocumentsGrep
from services.documents.operations.listing import DocumentsStatus
from services.documents.store import tables
from services.documents.store.databases import Store
from services.documents.store.incoming import BATCH_CHUNKS, MAX_BYTES, Incoming
from tests.in_process import Bench
from tests.unit.documents.rig import documents, listed, tree
from tests.waiting import until


def _files(count: int, seed: int = 1) -> dict[str, bytes]:
    """Names and bytes that hardly compress, some too long for a pack."""
    rng = random.Random(seed)
    return {f"{n % 3}/{n:03}.bin": rng.randbytes(rng.choice((0, 1, 300, 3000, 20_000, 60_000))) for n in range(count)}


async def _content(bench: Bench, folder: Path, name: str) -> bytes:
    out = folder / "root" / "out.bin"
    await bench.call(DocumentsGet(path=str(folder / "root" / "tree" / name), outputPath=str(out)))
    return out.read_bytes()


def _packs(folder: Path) -> list[tuple[int, int]]:
    """Number and length of each pack."""
    (path,) = (folder / "data").rglob("packs.db")
    with apsw.Connection(str(path)) as db:
        found = db.execute("SELECT id, length(data) FROM pack ORDER BY id").fetchall()
    db.close()
    return found  # type: ignore[return-value]  # as the columns are declared


async def test_a_pack_gives_back_the_room_of_what_was_deleted_and_keeps_the_rest(tmp_path: Path) -> None:
    files = _files(90)
    tree(tmp_path / "root" / "tree", files)
    async with documents(tmp_path) as bench:
        added = await bench.call(DocumentsAdd(path="tree"))
        assert added.documents_added == len(files)
        before = _packs(tmp_path)
        assert len(before) > 3
        for name, data in files.items():
            assert await _content(bench, tmp_path, name) == data
        gone = [name for n, name in enumerate(files) if n % 9]
        await bench.call(DocumentsDelete(snapshot_id=added.snapshot_id))
        await bench.call(DocumentsDelete(names=[str(tmp_path / "root" / "tree" / name) for name in gone]))

        async def collected() -> bool:
            kept = len({data for name, data in files.items() if name not in gone})
            return (await bench.call(DocumentsVerify())).objects == kept

        await until(collected)
        after = _packs(tmp_path)
        assert sum(length for _, length in after) < 0.5 * sum(length for _, length in before)
        verified = await bench.call(DocumentsVerify())
        assert (verified.damaged, verified.problems) == ([], [])
        for name in files.keys() - set(gone):
            assert await _content(bench, tmp_path, name) == files[name]
        await bench.call(DocumentsDelete(name="*"))
        await until(lambda: _nothing(tmp_path))


async def _nothing(folder: Path) -> bool:
    return not _packs(folder)


async def test_damage_in_a_pack_affects_one_content_only(tmp_path: Path) -> None:
    tree(tmp_path / "root" / "tree", {f"{n}.txt": f"text {n}" for n in range(5)})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path="tree"))
        await bench.stop("documents")
        (path,) = (tmp_path / "data").rglob("packs.db")
        with apsw.Connection(str(path)) as db:
            start, data = db.execute("SELECT start + stored, data FROM packed JOIN pack ON id=pack WHERE object=3").get
            db.execute("UPDATE pack SET data=?", (data[: start - 1] + bytes([data[start - 1] ^ 1]) + data[start:],))
        db.close()
        await bench.start("documents")
        verified = await bench.call(DocumentsVerify())
        assert [said.split("(")[1].split(")")[0][-5:] for said in verified.damaged] == ["2.txt"]
        for n in (0, 1, 3, 4):
            assert await _content(bench, tmp_path, f"{n}.txt") == f"text {n}".encode()
        with pytest.raises(OperationError, match="damaged"):
            await _content(bench, tmp_path, "2.txt")
        answer = await bench.call(DocumentsGrep(pattern="text [0-4]"))
        assert [(Path(match.file).name, match.line_text) for match in answer.matches] == [
            (f"{n}.txt", f"text {n}") for n in (0, 1, 3, 4)
        ]
        assert [said.split(":")[0][-5:] for said in answer.degraded] == ["2.txt"]


async def test_unchanged_files_are_not_opened_and_deleted_documents_are_read_again(tmp_path: Path) -> None:
    root = tmp_path / "root" / "tree"
    tree(root, {f"{n}.txt": f"text {n}" for n in range(6)})
    for file in root.iterdir():
        os.utime(file, (1, 1))
    async with documents(tmp_path) as bench:
        first = await bench.call(DocumentsAdd(path="tree", tags=["one"], collection="c"))
        # Path, size, times and inode suffice: the bytes are not read.
        again = await bench.call(DocumentsAdd(path="tree", tags=["two"], metadata={"k": "v"}))
        assert (again.documents_unchanged, again.documents_added, again.bytes_stored) == (6, 0, 0)
        assert first.bytes_stored == again.size == 36
        assert {(tuple(one.tags), one.metadata["k"], tuple(one.collections)) for one in await listed(bench)} == {
            (("one", "two"), "v", ("c",))
        }
        (root / "2.txt").write_text("text two")
        (root / "6.txt").write_text("text 3")
        third = await bench.call(DocumentsAdd(path="tree", collection="d"))
        assert (third.documents_unchanged, third.documents_updated, third.documents_added) == (5, 1, 1)
        assert third.bytes_stored == len("text two")
        out = tmp_path / "root" / "restored"
        for snapshot, names in ((first.snapshot_id, "012345"), (third.snapshot_id, "0123456")):
            await bench.call(
                DocumentsRestore(snapshot_id=snapshot, output_directory=str(out / str(snapshot)), overwrite=True)
            )
            assert sorted(path.name for path in (out / str(snapshot)).iterdir()) == [f"{n}.txt" for n in names]
        assert (out / str(first.snapshot_id) / "2.txt").read_text() == "text 2"
        assert (out / str(third.snapshot_id) / "2.txt").read_text() == "text two"
        verified = await bench.call(DocumentsVerify())
        assert (verified.damaged, verified.problems) == ([], [])


async def test_a_store_of_an_earlier_version_still_works(tmp_path: Path) -> None:
    tree(tmp_path / "root" / "tree", {f"{n}.txt": f"text {n}" for n in range(3)})
    data = tmp_path / "data" / "documents"
    data.mkdir(parents=True)
    earlier = apsw.Connection(str(data / "packs.db"))
    earlier.execute(
        tables.PACKS.tables.removesuffix(tables.PACKED + tables.DECODED) + "; PRAGMA user_version=1"
    ).fetchall()
    earlier.execute("INSERT INTO setting VALUES('epoch', '1-2')")
    earlier.close()
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path="tree"))
        assert await _content(bench, tmp_path, "1.txt") == b"text 1"
        assert (await bench.call(DocumentsStatus())).unique_blocks == 3


async def test_highly_compressible_contents_fill_a_batch_by_number_of_chunks(tmp_path: Path) -> None:
    # Each chunk holds as much memory as it had before: a hole of some gigabytes was more than the service may have.
    store = Store(tmp_path)
    incoming = Incoming(store.codec)
    fed = 0
    while not incoming.full and fed <= BATCH_CHUNKS * MAX_BYTES // 2**20:
        incoming.feed(bytes(2**20))
        fed += 1
    full = incoming.full
    await store.write(incoming.settle)
    store.close()
    assert (full, incoming.full) == (True, False)
