"""`python -m tests.fuzz.coverage TARGET --seconds N`: fuzz a target, and say what was found.

A finding is an exception that the target does not document, told apart from others by where it was raised, or an input
whose cost grows faster than its length: parts of it are repeated, four times as often the second time. libFuzzer itself
ends the run at an input that takes ten seconds or a gigabyte.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.coverage import TARGETS, corpus, keep

MAX_BYTES = 4096
KEPT_BYTES = 20 * 1024
"""Size of a target's corpus as written: the smallest inputs, each of which reached code that the earlier ones had not.
"""

EVERY = 200
"""Inputs of which one is repeated."""

REPEATED = (8 * 1024, 32 * 1024)
SLOW_S, FASTER = 0.25, 9.0
"""What takes longer and grows faster than this, where four is linear and sixteen is quadratic, is a finding."""

MODULES = {
    "frames": ("proto",),
    "jsonrpc": ("proto", "services.front"),
    "http": ("services.front.transport.access", "services.front.transport.http_server"),
    "yaml": ("services.yaml",),
    "references": ("proto", "services.front.composite"),
    "uris": (
        "services.front.surfaces",
        "proto.validation",
        "services.fetch",
        "services.front.transport.access",
    ),
    "transcripts": ("services.transcripts",),
    "patterns": (
        "services.runtime",
        "services.documents",
        "services.files.query",
        "services.yaml.schema",
    ),
    "documents": ("services.decode.text", "services.shared.text.html"),
    "notes": ("services.knowledge.notes", "services.documents.text", "services.retrieve.index.terms"),
}
"""The modules to instrument, by target; the list must be known before anything is imported."""


class Findings:
    """Runs a target on inputs, and gathers what must not be."""

    def __init__(self, read: Callable[[bytes], None], folder: Path) -> None:
        self._read = read
        self._folder = folder
        self._random = random.Random(15)
        self.executions = 0
        self.found: dict[str, Path] = {}

    def one(self, data: bytes) -> None:
        """An input of libFuzzer's."""
        self.executions += 1
        try:
            self._read(data)
            if self.executions % EVERY == 0 and data:
                self._repeat(data)
        except Exception as error:  # noqa: BLE001  # any is a finding
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self._tell(f"{type(error).__name__} at {frame.filename}:{frame.lineno}", data, traceback.format_exc())

    def _repeat(self, data: bytes) -> None:
        start = self._random.randrange(len(data))
        end = min(len(data), start + self._random.choice((1, 2, 4, 8, 16, 64)))

        def cost(size: int) -> float:
            times = max(1, size // (end - start))
            whole = data[:start] + data[start:end] * times + data[end:]
            begun = time.thread_time()
            self._read(whole)
            return time.thread_time() - begun

        small, large = map(cost, REPEATED)
        if large > SLOW_S and large > FASTER * small and cost(REPEATED[1]) > FASTER * cost(REPEATED[0]):
            self._tell(f"cost of {data[start:end]!r}", data, f"{small:.3f} s and then {large:.3f} s at {start}:{end}")

    def _tell(self, what: str, data: bytes, details: str) -> None:
        if what in self.found:
            return
        self.found[what] = self._folder / f"{len(self.found)}"
        self.found[what].write_bytes(data)
        print(f"FOUND {what}\n{data!r}\n{details}", file=sys.stderr, flush=True)


def _keep(target: str, folder: Path) -> None:
    inputs = {path.read_bytes() for path in folder.iterdir()}
    chosen: list[bytes] = []
    left = KEPT_BYTES
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        left -= len(repr(data)) + 1
        if left < 0:
            break
        chosen.append(data)
    keep(target, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.coverage", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--work", type=Path, help="keeps the whole corpus and what was found")
    parser.add_argument("--keep", action="store_true", help="fuzz nothing: keep the smallest inputs of --work")
    asked = parser.parse_args()
    if asked.keep:
        _keep(asked.target, asked.work / "corpus")
        return
    # It has wheels for few systems, and no types.
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=[*MODULES[asked.target], f"tests.fuzz.coverage.{asked.target}"]):
        module = importlib.import_module(f"tests.fuzz.coverage.{asked.target}")
    with tempfile.TemporaryDirectory() as folder:
        work = asked.work or Path(folder)
        inputs, found = work / "corpus", work / "found"
        inputs.mkdir(parents=True, exist_ok=True)
        found.mkdir(exist_ok=True)
        for number, seed in enumerate([*module.SEEDS, *corpus(asked.target)]):
            (inputs / f"seed-{number}").write_bytes(seed)
        findings = Findings(module.read, found)
        options = ("-timeout=10", "-rss_limit_mb=1024", "-use_value_profile=0", f"-artifact_prefix={found}/")
        atheris.Setup([sys.argv[0], str(inputs), f"-max_total_time={asked.seconds}", f"-max_len={MAX_BYTES}", *options],
                      findings.one)  # fmt: skip
        atheris.Fuzz()


if __name__ == "__main__":
    main()
