"""A folder with a checkout of source code, photos and a film, and a client that works in it by the tools' names."""

from __future__ import annotations

import io
import os
import shutil
import stat
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import trio
from mcp.client import Client
from PIL import Image

from proto.vocabulary import current_name
from tests.system.running import REPOSITORY
from tests.unit.files.rig import OnDisk
from tests.unit.media.test_media import video

PATIENCE_S = 30
PHOTOS = {"beach.jpg": (800, 600), "Übersicht.png": (300, 200), "tall.webp": (100, 900)}
DAY_S = 86_400


def make_place(place: Path) -> None:
    """A checkout with links of both kinds and names that are hard to match, and what a camera leaves."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "services", place / "checkout/services", ignore=ignored)
    shutil.copytree(Path(trio.__file__).parent, place / "checkout/vendor/trio", ignore=ignored)
    (place / "checkout/100%_done").mkdir()
    (place / "checkout/100%_done/readme.TXT").write_text("x" * 1234)
    (place / "checkout/latest").symlink_to("services")
    os.link(place / "checkout/services/files/index/scan.py", place / "checkout/scan-again.py")
    old = time.time() - 400 * DAY_S
    os.utime(place / "checkout/services/files/index/tree.py", (old, old))
    photos = place / "photos"
    photos.mkdir()
    for number, (name, size) in enumerate(PHOTOS.items()):
        Image.new("RGB", size, (200, 20 * number, 10)).save(photos / name)
    video(photos / "film.mp4")
    shutil.copy(photos / "beach.jpg", photos / "copy of beach.jpg")
    os.link(photos / "beach.jpg", photos / "linked.jpg")


class Place:
    """What a client does in its folder, by the tools' names, and the disk that it must agree with."""

    def __init__(self, client: Client, folder: str) -> None:
        self._client = client
        self.folder = folder
        self.checkout = f"{folder}/checkout"
        self.photos = f"{folder}/photos"
        self.called: set[str] = set()

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        self.called.add(current_name(tool))
        result = await self._client.call_tool(tool, arguments)
        assert not result.is_error, (tool, result.content)
        return result.structured_content

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that must fail; return the error text."""
        result = await self._client.call_tool(tool, arguments)
        assert result.is_error, (tool, result.structured_content)
        (content,) = result.content
        assert content.type == "text"
        return content.text

    async def content(self, tool: str, **arguments: Any) -> list[Any]:
        self.called.add(current_name(tool))
        result = await self._client.call_tool(tool, arguments)
        assert not result.is_error, (tool, result.content)
        return list(result.content)

    async def until(self, check: Callable[[], Any]) -> Any:
        """Ask until the answer is true; return it."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                if found := await check():
                    return found
                await anyio.sleep(0.02)

    def disk(self, folder: str | None = None) -> OnDisk:
        return OnDisk(Path(folder or self.folder))

    def files(self, folder: str) -> dict[str, os.stat_result]:
        """The files below a folder, by path."""
        return {path: status for path, status in self.disk(folder).entries.items() if stat.S_ISREG(status.st_mode)}

    async def in_step(self) -> None:
        """The index has each entry of the folder, with its sums, and nothing else."""
        disk = self.disk()
        found: dict[str, Any] = {}
        for folder in disk.folders():
            answer = await self("navigate", path=folder, limit=10_000)
            assert (answer["path"], answer["hasMore"]) == (folder, False)
            found |= {entry["path"]: entry for entry in answer["entries"]}
        assert found.keys() | {disk.root} == disk.entries.keys()
        for path, entry in found.items():
            status = disk.entries[path]
            is_folder = stat.S_ISDIR(status.st_mode)
            assert entry["size"] == (disk.sums(path)[0] if is_folder else status.st_size), path
            assert (entry["kind"] == "directory") == is_folder


def paths_of(answer: Any) -> list[str]:
    return [entry["path"] for entry in answer["entries"]]


def size_of(path: str) -> int:
    return os.path.getsize(path)


def exists(path: str) -> bool:
    return os.path.lexists(path)


def write(path: str, content: bytes) -> None:
    """A file, with the folders that lead to it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content)


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def picture(url: str) -> Any:
    """The picture at a URL as it was answered."""
    return Image.open(io.BytesIO(fetch(url))).convert("RGB")
