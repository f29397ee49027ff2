"""`linckia reembed --cluster` makes each missing vector once on a real Ray cluster, whatever is killed meanwhile."""

from __future__ import annotations

import base64
import importlib.util
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from kernel.cli import EXIT_INTERRUPTED
from services.embed import weights
from services.shared.text.cutting import embedded_text
from tests.system.running import RunningKernel, running, wait_until
from tests.system.support.ray_nodes import RayNodes, ray_nodes, settings

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs linckia[ray-data]"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs linckia[ray-data]"),
    # Ray leaves files and sockets of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ITEMS = 3000
WORDS = ["zebra", "okapi", "river", "stone", "cloud", "lantern", "copper", "violin", "harbour", "tax", "orbit"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(2) as found:
        yield found


def fill(kernel: RunningKernel) -> None:
    chance = random.Random(1)
    for start in range(0, ITEMS, 250):
        groups = [
            {"id": f"g{n}", "items": [{"key": "0", "text": f"{n} {' '.join(chance.choices(WORDS, k=120))}"}]}
            for n in range(start, start + 250)
        ]
        kernel.call("retrieve_put", {"collection": "notes", "groups": groups})


def reembed(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "kernel.cli", "reembed", "--data", str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def waiting(kernel: RunningKernel) -> int:
    (outbox,) = kernel.call("retrieve_outboxes")["outboxes"]
    return int(outbox["waiting"])


def newest_waiting(kernel: RunningKernel) -> int:
    """The id of the newest item that waits, which the cluster embeds next; 0 if none waits."""
    items = kernel.call("retrieve_waiting", {"collection": "notes", "limit": 1})["items"]
    return int(items[0]["id"]) if items else 0


def log(folder: Path) -> str:
    path = folder / "logs" / "reembed.log"
    return path.read_text() if path.exists() else ""


def made(said: str) -> int:
    found = re.search(r"([\d,]+) vectors? made on the cluster", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def vectors_of(folder: Path) -> dict[str, bytes]:
    """The vector of each text that was embedded, as stored."""
    (path,) = folder.glob("services/retrieve/**/notes.db")
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows: list[Any] = db.execute(
        "SELECT title, heading, text, vector FROM items JOIN groups USING (group_id) JOIN vectors USING (item_id)"
    ).fetchall()
    assert len(rows) == len({text for _, _, text, _ in rows})
    return {embedded_text(title, heading, text): vector for title, heading, text, vector in rows}


@pytest.mark.timeout(600)
def test_every_item_gets_the_vector_that_embed_makes_although_a_node_and_the_command_are_killed(
    nodes: RayNodes, tmp_path: Path
) -> None:
    settings(tmp_path, nodes.address, {})
    with running(tmp_path, services=["front", "embed", "retrieve"]) as kernel:
        kernel.wait_ready("embed", "retrieve")
        fill(kernel)
        newest = newest_waiting(kernel)
        first = reembed(tmp_path, "--cluster")
        # The kernel itself starts with the oldest.
        wait_until(lambda: newest_waiting(kernel) < newest, 90, said=lambda: log(tmp_path))
        nodes.kill(nodes.nodes.pop())
        left = waiting(kernel)
        wait_until(lambda: waiting(kernel) < left - 200, 90, said=lambda: log(tmp_path))
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=30)
        assert (said, first.returncode) == ("", EXIT_INTERRUPTED)
        assert waiting(kernel)
        second = reembed(tmp_path, "--cluster")
        said, _ = second.communicate(timeout=200)
        assert second.returncode == 0, said + log(tmp_path)
        assert 0 < made(said) < ITEMS
        wait_until(lambda: not waiting(kernel), 60)
        stored = vectors_of(tmp_path)
        assert len(stored) == ITEMS
        texts = random.Random(2).sample(sorted(stored), 256)
        dtype, shape, data = kernel.call("embed_texts", {"texts": texts})["vectors"]
        ours = np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
        theirs = np.stack([np.frombuffer(stored[text], "<f2") for text in texts]).astype(np.float32)
        assert (ours * theirs).sum(axis=1).min() > 0.999


def test_without_a_cluster_it_waits_for_the_kernel(tmp_path: Path) -> None:
    with running(tmp_path, services=["front", "embed", "retrieve"]) as kernel:
        groups = [{"id": f"g{n}", "items": [{"key": "0", "text": f"zebra {n}"}]} for n in range(20)]
        kernel.call("retrieve_put", {"collection": "notes", "groups": groups})
        command = reembed(tmp_path)
        said, _ = command.communicate(timeout=120)
        assert command.returncode == 0, said
        assert waiting(kernel) == 0
        refused = reembed(tmp_path, "--cluster")
        said, _ = refused.communicate(timeout=60)
        assert refused.returncode == 2
        assert "[cluster]" in said
