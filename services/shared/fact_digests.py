"""Comparison of two databases by digests, for `linckia sync`.

A database is a set of facts, each known by a digest. Facts are grouped into 256 buckets by the first byte of their
digests. Two databases compare one digest for each bucket, and list only the facts of buckets that differ. Nothing is
stored for it, so a database that was restored from a backup is compared like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

BUCKETS = 256
DIGEST_BYTES = 16

PAGE_FACTS = 20_000
"""About how many facts an answer lists; it has one bucket at least."""

F = TypeVar("F")


def digest(kind: str, *parts: bytes | str | int) -> bytes:
    """Return the digest of a fact. The lengths of the parts are part of it, so no two facts are equal by chance."""
    whole = kind.encode()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        whole += b"%d:" % len(data) + data
    return hashlib.blake2b(whole, digest_size=DIGEST_BYTES).digest()


def buckets_of(digests: Iterable[bytes]) -> list[str]:
    """Return a digest for each bucket, in hexadecimal; the order of the facts does not matter."""
    sums = [0] * BUCKETS
    for each in digests:
        sums[each[0]] ^= int.from_bytes(each, "big")
    return [each.to_bytes(DIGEST_BYTES, "big").hex() for each in sums]


def page(facts: Iterable[tuple[bytes, F]], buckets: Sequence[int]) -> tuple[list[F], list[int]]:
    """Return the facts of the first of these buckets, as many as fit, and the buckets that they are from."""
    wanted: dict[int, list[F]] = {number: [] for number in buckets}
    for name, fact in facts:
        if (found := wanted.get(name[0])) is not None:
            found.append(fact)
    listed: list[F] = []
    covered: list[int] = []
    for number, found in wanted.items():
        if covered and len(listed) + len(found) > PAGE_FACTS:
            break
        listed += found
        covered.append(number)
    return listed, covered
