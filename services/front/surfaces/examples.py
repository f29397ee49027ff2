"""What Linckia's own operations are asked for: example requests of each, and what was learned from them.

`examples.txt` has requests as people and agents word them, by operation. Search by words counts their words;
`learned.bin` has a vector for each operation whose product with the vector of a request tells how well it fits
(multinomial logistic regression). It is made by `scripts/bench tool_search --train`, for one embedding model.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parent
EXAMPLES, LEARNED = _FOLDER / "examples.txt", _FOLDER / "learned.bin"


class Learned(msgspec.Struct, frozen=True):
    """The first line of `learned.bin`; the rest are its numbers as 8-bit integers, operation by operation.

    `fingerprint` is the model's, and `examples` the hash of the examples. The numbers of an operation times its `scale`
    are its vector.
    """

    fingerprint: str
    examples: str
    names: list[str]
    scales: list[float]


@lru_cache(maxsize=1)
def examples() -> Mapping[str, Sequence[str]]:
    """Return the example requests by operation."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in EXAMPLES.read_text("utf-8").splitlines():
        if line.startswith(" "):
            found[name].append(line.strip())
        else:
            name = line.removesuffix(":")
            found[name] = []
    return found


def digest() -> str:
    """Return the hash of the examples."""
    return hashlib.sha256(EXAMPLES.read_bytes()).hexdigest()


@lru_cache(maxsize=1)
def _learned() -> tuple[Learned, list[array[int]]]:
    head, _, rest = LEARNED.read_bytes().partition(b"\n")
    learned = msgspec.json.decode(head, type=Learned)
    numbers = array("b", rest)
    size = len(numbers) // len(learned.names)
    return learned, [numbers[at : at + size] for at in range(0, len(numbers), size)]


def fits(request: Sequence[float], fingerprint: str) -> Mapping[str, float] | None:
    """Return how well each operation fits a request, by the request's vector; None if it is of another model."""
    learned, rows = _learned()
    if learned.fingerprint != fingerprint:
        return None
    return {
        name: scale * sum(map(mul, request, row))
        for name, scale, row in zip(learned.names, learned.scales, rows, strict=True)
    }
