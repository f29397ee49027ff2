"""What `linckia export` reads: contents, many in an answer of bounded size."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.carry import ANSWER_BYTES, INLINE_BYTES, DocumentsExportContents
from tests.unit.documents.rig import documents, tree


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_contents_come_together_up_to_a_bound_and_longer_ones_in_pieces(tmp_path: Path) -> None:
    contents = [b"small", os.urandom(INLINE_BYTES + 5), b"", *(os.urandom(INLINE_BYTES) for _ in range(4))]
    async with documents(tmp_path) as bench:
        tree(tmp_path / "root", {f"{number}.bin": data for number, data in enumerate(contents)})
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        gone = sha256(b"never stored")
        hashes = [gone, *map(sha256, contents)]
        answer = (await bench.call(DocumentsExportContents(hashes=hashes))).contents
        assert "no content is stored" in answer[0].problem
        assert [(one.data, one.size) for one in answer[1:]] == [
            (data[:INLINE_BYTES], len(data)) for data in contents[: len(answer) - 1]
        ]
        assert ANSWER_BYTES <= sum(len(one.data) for one in answer) < ANSWER_BYTES + INLINE_BYTES
        (rest,) = (await bench.call(DocumentsExportContents(hashes=[hashes[2]], offset=INLINE_BYTES))).contents
        assert rest.data == contents[1][INLINE_BYTES:]
