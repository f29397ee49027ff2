"""The cache on a full or damaged disk: known results are served; new ones fail without effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from proto.errors import OperationError, Unavailable
from proto.ops.media import MediaArtifactParams, MediaInspect, MediaInspection
from tests.in_process import Bench
from tests.unit.media.test_media import media
from tests.unit.runtime.faults import damage_page, disk, files_in, page_count


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    for name in ("old.png", "new.png"):
        Image.effect_noise((200, 100), 40).save(folder / name)
    return folder


async def inspected(bench: Bench, path: Path) -> MediaInspection:
    """Repeat the call on a retryable failure, as the kernel does."""
    while True:
        try:
            return await bench.call(MediaInspect(path=str(path)))
        except Unavailable:
            continue


@pytest.mark.parametrize("statement", range(1, 7))
async def test_a_full_disk_fails_new_results_only(tmp_path: Path, root: Path, statement: int) -> None:
    with disk() as full:
        async with media(tmp_path / "data", root) as bench:
            old = await bench.call(MediaInspect(path=str(root / "old.png")))
            full.fill(at=statement)
            with pytest.raises(OperationError, match="nothing was done"):
                await bench.call(MediaInspect(path=str(root / "new.png")))
            assert await bench.call(MediaInspect(path=str(root / "old.png"))) == old
            full.room()
            new = await bench.call(MediaInspect(path=str(root / "new.png")))
            assert (new.problem, len(new.artifacts)) == (None, 1)
            assert not bench.failures


async def test_a_damaged_cache_is_recreated(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "data/media/media.db"
    async with media(tmp_path / "data", root) as bench:
        old = await bench.call(MediaInspect(path=str(root / "old.png")))
        for first in (1, 2):
            await bench.finish("media")
            for page in range(first, page_count(path) + 1):
                damage_page(path, page)
            await bench.start("media")
            assert await inspected(bench, root / "old.png") == old
            (artifact,) = old.artifacts
            assert (await bench.call(MediaArtifactParams(hash=str(old.hash), name=artifact.name))).data
        assert len(files_in(path.parent, "media.db.damaged-*")) == 2
        assert not bench.failures
