"""Trees: the folders and rules that subscriptions share, as they are stored and as the tracker uses them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import apsw
import msgspec

from services.watch.rules import Rules
from services.watch.store import select


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree is of; two subscriptions of the same spec share it. Paths are real and sorted."""

    paths: tuple[str, ...]
    recursive: bool
    ignore: tuple[str, ...]
    include: tuple[str, ...]


@dataclass(slots=True)
class Tree:
    """A tree that is being tracked. Until its first scan is `complete` its changes are not logged."""

    number: int
    spec: Spec
    complete: bool
    rules: Rules
    roots: tuple[bytes, ...]
    missing: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, number: int, spec: Spec, *, complete: bool) -> Tree:
        roots = tuple(os.fsencode(path) for path in spec.paths)
        return cls(number, spec, complete, Rules(spec.ignore, spec.include), roots)


def encode(spec: Spec) -> str:
    return msgspec.json.encode(spec, order="deterministic").decode()


def load(db: apsw.Connection) -> dict[int, Tree]:
    """All trees, by number."""
    rows = select(db, "SELECT tree, spec, complete FROM tree")
    return {
        number: Tree.of(number, msgspec.json.decode(spec, type=Spec), complete=bool(complete))
        for number, spec, complete in rows
    }


def outermost(paths: list[str]) -> tuple[str, ...]:
    """The paths sorted, without those inside another."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(other.rstrip(os.sep) + os.sep) for other in kept):
            kept.append(path)
    return tuple(kept)


__all__ = ["Spec", "Tree", "encode", "load", "outermost"]
