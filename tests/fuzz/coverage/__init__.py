"""Fuzzing of the parsers of external input, guided by the code that each input reaches (atheris, libFuzzer).

    LINCKIA_EXTRA=fuzz scripts/linckia --version
    python -m tests.fuzz.coverage TARGET --seconds N

A target is a module here: `read(data)` raises nothing where all is well, whatever `data` is; what a reader documents
as its failure the target catches. `SEEDS` are its first inputs. `corpus/TARGET.txt`
has the inputs that were found to reach different code, a bytes literal a line; an ordinary test replays them.
"""

from __future__ import annotations

import ast
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

TARGETS = ("frames", "jsonrpc", "http", "yaml", "references", "uris", "transcripts", "patterns", "notes", "documents")


def corpus(target: str) -> list[bytes]:
    """The inputs that are kept of a target."""
    path = CORPUS / f"{target}.txt"
    return [ast.literal_eval(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def keep(target: str, inputs: list[bytes]) -> None:
    """Write the corpus of a target."""
    CORPUS.mkdir(exist_ok=True)
    lines = [f"{data!r}\n" for data in sorted(inputs, key=lambda data: (len(data), data))]
    (CORPUS / f"{target}.txt").write_text("".join(lines), "ascii")


def parted(data: bytes, count: int) -> list[bytes]:
    """The input as so many parts, which a zero byte divides; those that are not there are empty."""
    return (data.split(b"\0", count - 1) + [b""] * count)[:count]


def text(data: bytes) -> str:
    """As text, whatever it is; half a surrogate pair may be in it, as in what Python reads of file names."""
    return data.decode("utf-8", "surrogateescape")
