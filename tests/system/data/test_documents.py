"""Documents under real kills, at real sizes, in a real kernel."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.control.client import CallFailed
from tests.system.cli.clients import command
from tests.system.data.documents_kills import kill_at_random_points
from tests.system.running import REPOSITORY, RunningKernel, running
from tests.unit.documents.test_texts import pdf

LARGE_BYTES = 96 * 1024 * 1024
MEMORY_BYTES = 300 * 1024 * 1024


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def kernel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    services = ("documents", "decode", "graph", "retrieve")
    with running(tmp_path_factory.mktemp("data"), [root], services=services) as kernel:
        yield kernel


def linckia(kernel: RunningKernel, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "kernel.cli", *words, "--data", str(kernel.data_dir)]
    return subprocess.run(command, cwd=REPOSITORY, input=stdin, capture_output=True, timeout=60, check=False)


def test_documents_are_stored_listed_read_searched_and_restored_by_command(kernel: RunningKernel, root: Path) -> None:
    data, tree = kernel.data_dir, root / "people"
    tree.mkdir()
    (tree / "a.txt").write_text("first line\nneedle here\nlast line\n")
    (tree / "b.bin").write_bytes(bytes(range(256)) * 8)
    done = command(data, "add", str(tree), "--collection", "people", "--label", "one")
    assert done.returncode == 0, done.stderr
    assert "2 files" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr, "colours are for terminals"
    assert linckia(kernel, "add", "--name", "piped.txt", stdin=b"from a pipe\n").returncode == 0
    listed = json.loads(command(data, "ls", str(tree), "--json").stdout)
    assert [one["name"] for one in listed["documents"]] == ["a.txt", "b.bin"]
    assert command(data, "ls", "--paths", "--collection", "people").stdout.split() == [
        str(tree / "a.txt"), str(tree / "b.bin"),
    ]  # fmt: skip
    assert linckia(kernel, "cat", "b.bin").stdout == bytes(range(256)) * 8
    assert command(data, "cat", listed["documents"][0]["hash"][:10]).stdout.startswith("first line")
    assert command(data, "grep", "-C", "1", "need.e", str(tree)).stdout.splitlines() == [
        f"{tree}/a.txt-1-first line", f"{tree}/a.txt:2:needle here", f"{tree}/a.txt-3-last line",
    ]  # fmt: skip
    assert command(data, "grep", "no such text anywhere").returncode == 1
    (snapshot,) = json.loads(command(data, "snapshots", "--json").stdout)["snapshots"]
    assert snapshot["label"] == "one"
    restored = command(data, "checkout", "--snapshot", snapshot["id"], str(root / "again"))
    assert restored.returncode == 0, restored.stderr
    assert (root / "again" / "b.bin").read_bytes() == bytes(range(256)) * 8
    assert command(data, "checkout", str(root / "again")).returncode == 2
    missing = command(data, "cat", "nothing-of-this-name")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "nothing-of-this-name" in missing.stderr
    doctor = json.loads(command(data, "doctor", "--verify", "--json").stdout)
    assert [one["verdict"] for one in doctor if one["what"] == "documents"] == ["ok"]


def test_nothing_acknowledged_is_lost_whenever_the_process_is_killed(kernel: RunningKernel, root: Path) -> None:
    known = trio.run(kill_at_random_points, kernel, root, 6)
    assert known.there


def test_a_large_file_goes_in_and_out_within_the_memory_that_each_process_may_use(
    kernel: RunningKernel, root: Path
) -> None:
    digest = write_large(root / "large.bin", LARGE_BYTES)
    added = kernel.call("documents_add", {"path": str(root / "large.bin")})
    assert (added["hash"], added["size"]) == (digest, LARGE_BYTES)
    got = kernel.call("documents_get", {"hash": digest, "outputPath": str(root / "copy.bin")})
    with open(got["output_path"], "rb") as copy:
        assert hashlib.file_digest(copy, "sha256").hexdigest() == digest
    for name, peak in peaks(kernel).items():
        assert peak < MEMORY_BYTES, f"{name} has used {peak / 2**20:.0f} MiB"


def test_a_document_whose_extraction_keeps_ending_the_decoder_is_set_aside(kernel: RunningKernel, root: Path) -> None:
    # Thousands of pages take long enough to be killed in the midst of.
    (root / "slow.pdf").write_bytes(pdf(*(f"page {n} " + "word " * 400 for n in range(2000))))
    before = kernel.call("documents_status")["quarantined"]
    client = subprocess.Popen(
        [sys.executable, "-P", "-m", "kernel.cli", "call", "documents_add",
         json.dumps({"path": str(root / "slow.pdf")}), "--data", str(kernel.data_dir)],
        cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    kills = 0
    give_up = time.monotonic() + 60
    while (status := _status(kernel))["quarantined"] == before:
        assert time.monotonic() < give_up, status
        decoder = kernel.service("decode")
        if status["extraction_waiting"] and decoder["in_flight"]:
            kernel.kill("decode", signal.SIGSEGV)
            kills += 1
            kernel.wait_ready("decode")
        time.sleep(0.02)
    client.wait(30)
    assert kills >= 2
    got = kernel.call("documents_get", {"name": "slow.pdf", "include_content": True, "length": 4})
    assert (got["content"], got["mime_type"]) == ("JVBERg==", "application/pdf")
    status = kernel.call("documents_status", {"detailed": True})
    assert any("slow.pdf" in said and "died" in said for said in status["quarantine"])


def _status(kernel: RunningKernel) -> dict[str, Any]:
    while True:
        try:
            answer: dict[str, Any] = kernel.call("documents_status")
            return answer
        except CallFailed as error:
            if error.failure["kind"] != "unavailable":
                raise
            kernel.wait_ready("documents")


def write_large(path: Path, size: int) -> str:
    """Write a file that cannot be compressed; return its SHA-256."""
    rng = random.Random(7)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(size // 2**20):
            block = rng.randbytes(2**20)
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def peaks(kernel: RunningKernel) -> dict[str, int]:
    """The most memory that the kernel and `documents` have used, in bytes."""
    pids = {"kernel": kernel.process.pid, "documents": kernel.service("documents")["pid"]}
    found: dict[str, int] = {}
    for name, pid in pids.items():
        (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmHWM:")]
        found[name] = int(line.split()[1]) * 1024
    return found
