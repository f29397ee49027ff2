"""Media on a real kernel: served over HTTP in parts, and a decoder that is killed costs nobody anything."""

from __future__ import annotations

import math
import os
import re
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from proto.control.client import CallFailed
from tests.system.data import bombs
from tests.system.running import HTTP, RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    root = tmp_path_factory.mktemp("root")
    (root / "big.bin").write_bytes(bytes(range(256)) * 4096)
    (root / "page.html").write_text("<html><script>alert(1)</script></html>")
    (root / "empty.txt").touch()
    Image.effect_noise((900, 600), 60).save(root / "a.png")
    (root.parent / "secret.txt").write_text("treasure")
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    services = ("files", "compare", "watch", "media", "decode")
    with running(tmp_path_factory.mktemp("data"), [root], options=HTTP, services=services) as started:
        yield started


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    """A kernel that has little patience with files."""
    folder = tmp_path_factory.mktemp("hasty")
    (folder / "root").mkdir()
    environment = {"LINCKIA_SERVICES__DECODE__TIME_LIMIT_S": "1.5"}
    services = ("media", "decode")
    with running(folder / "data", [folder / "root"], environment=environment, services=services) as started:
        yield started


def get(kernel: RunningKernel, path: object, **headers: str) -> tuple[int, Message, bytes]:
    base = str(kernel.status()["http_url"]).removesuffix("/mcp")
    url = f"{base}/api/content?" + urllib.parse.urlencode({"path": str(path)})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=named), timeout=30) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def root_of(kernel: RunningKernel) -> Path:
    return Path(kernel.status()["roots"][0])


def test_file_is_served_whole_and_in_parts(kernel: RunningKernel) -> None:
    file = root_of(kernel) / "big.bin"
    data = file.read_bytes()
    status, headers, body = get(kernel, file)
    assert (status, body) == (200, data)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Length"] == str(len(data))
    for asked, start, end in (("0-9", 0, 10), ("1000000-", 1000000, len(data)), ("-5", len(data) - 5, len(data)),
                              ("300000-700000", 300000, 700001)):  # fmt: skip
        status, headers, body = get(kernel, file, Range=f"bytes={asked}")
        assert (status, body) == (206, data[start:end])
        assert headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(data)}"
    status, headers, _ = get(kernel, file, Range=f"bytes={len(data)}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(data)}")
    assert get(kernel, file, Range="bytes=9-2")[0] == 200
    assert get(kernel, file, If_None_Match=headers["ETag"])[0] == 304
    assert get(kernel, root_of(kernel) / "empty.txt")[::2] == (200, b"")


def test_active_content_is_served_as_a_sandboxed_download(kernel: RunningKernel) -> None:
    _, headers, _ = get(kernel, root_of(kernel) / "page.html")
    assert headers["Content-Disposition"].startswith("attachment")
    assert "sandbox" in headers["Content-Security-Policy"]


def test_nothing_outside_the_roots_is_served(kernel: RunningKernel) -> None:
    root = root_of(kernel)
    data = kernel.data_dir / "services/media/media.db"
    for path in ("/etc/passwd", root / "link.txt", root / "../secret.txt", data, "../secret.txt", "cache/../x", "\0"):
        status, _, body = get(kernel, path)
        assert (status, b"treasure" in body) == (403, False), path
    assert get(kernel, root / "not-there")[0] == 404
    assert get(kernel, "")[0] == 400


REFUSED = {
    "giant.png": "60000 by 60000 pixels", "text.png": "too large", "giant.tif": "100000 by 100000 pixels",
    "giant.webp": "cannot be decoded|16384 by 16384", "giant.gif": "65535 by 65535 pixels", "cut off.jpg": "truncated",
    "giant.avi": "cannot decode", "cut off.avi": "not a readable video|no video",
    "giant.pdf": "is empty", "itself.pdf": "not a readable PDF",
}  # fmt: skip
"""Errors for the bombs that yield no picture; the others yield theirs within the limits."""


def test_bombs_cost_an_error_of_one_file_each(kernel: RunningKernel) -> None:
    folder = root_of(kernel) / "bombs"
    folder.mkdir()
    bombs.write_all(folder)
    kernel.call("index", {"root": str(folder), "async": False, "force": True})
    kernel.wait_ready("decode")
    before = kernel.service("decode")
    for name in bombs.BOMBS:
        found = kernel.call("inspect", {"path": str(folder / name)}, timeout_s=60)
        (said,) = (each["metadata"] for each in found["metadata"] if each["type"] == "metadata")
        if name in REFUSED:
            assert re.search(REFUSED[name], said["problem"]), (name, said)
            assert "thumbnailUri" not in found, name
        else:
            assert "thumbnailUri" in found, (name, said)
    after = kernel.service("decode")
    # None of them took its life, or memory beyond the limit that it has.
    assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{after['pid']}/status").read_text())
    assert int(peak) * 1024 < 2 * 1024**3


def test_artefact_is_made_once_and_served_while_its_decoder_is_dead(kernel: RunningKernel) -> None:
    found = kernel.call("media_inspect", {"path": str(root_of(kernel) / "a.png")})
    (thumbnail,) = found["artifacts"]
    kernel.kill("decode", signal.SIGKILL)
    status, headers, body = get(kernel, thumbnail["path"])
    assert (status, headers["Content-Type"], len(body)) == (200, "image/jpeg", thumbnail["size"])
    assert kernel.call("media_inspect", {"path": str(root_of(kernel) / "a.png")}) == found


def test_a_file_that_takes_too_long_is_reported_and_harms_no_other(hasty: RunningKernel) -> None:
    root = root_of(hasty)
    for number in range(3):
        (root / f"slow {number}.pdf").write_bytes(bombs.pdf_of_a_slow_shade(200_000 + number))
        Image.effect_noise((300, 200), 60 + number).save(root / f"good {number}.png")
    before = hasty.service("decode")["generation"]
    found: dict[str, Any] = {}

    def inspect(path: Path) -> None:
        found[path.name] = hasty.call("media_inspect", {"path": str(path)}, timeout_s=60)

    files = sorted(root.glob("* *"), key=lambda path: path.name.split()[1])
    with ThreadPoolExecutor(len(files)) as pool:
        for _ in pool.map(inspect, files):
            pass
    for name, said in found.items():
        if name.endswith(".png"):
            assert (said.get("problem"), len(said["artifacts"])) == (None, 1), name
        else:
            assert re.search(r"exceeds the limit of 1\.5 s", said["problem"]), (name, said)
    wait_until(lambda: hasty.service("decode")["generation"] >= before + 3, said=lambda: hasty.service("decode"))
    after = hasty.service("decode")
    # Results are kept and not computed again.
    for name, said in found.items():
        assert hasty.call("media_inspect", {"path": str(root / name)}) == said
    assert hasty.service("decode")["generation"] == after["generation"]


TICKS = os.sysconf("SC_CLK_TCK")


def ticks(pid: int) -> float:
    """The processor time that a process has used, in 1/`TICKS` s; without end where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return math.inf
    return int(fields[11]) + int(fields[12])


def test_the_time_limit_applies_even_if_the_client_has_left(hasty: RunningKernel) -> None:
    slow = root_of(hasty) / "slow.pdf"
    # Another content than that of the test above, of which the answer is known.
    slow.write_bytes(bombs.pdf_of_a_slow_shade(300_000))
    hasty.wait_ready("decode")
    before = hasty.service("decode")
    idle = ticks(before["pid"])
    while ticks(before["pid"]) < idle + TICKS / 10:
        # On a busy machine the time may be over before the decoder has begun.  The service counts the time left when
        # the call reached it.
        with pytest.raises(CallFailed, match=r"within 0\.\d+ s|died"):
            hasty.call("media_inspect", {"path": str(slow)}, timeout_s=0.5)
    wait_until(lambda: not Path(f"/proc/{before['pid']}").exists())
