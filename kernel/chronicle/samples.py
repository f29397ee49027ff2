"""Figures of all services at one time, and as series."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Point(msgspec.Struct, frozen=True, array_like=True):
    """Figures of a service at one time; the fields are those of `Series`."""

    cpu: float | None
    memory_bytes: int | None
    calls_per_s: float | None
    failed: int | None
    queued: int | None
    p50_ms: float | None
    p99_ms: float | None


class Sample(msgspec.Struct, frozen=True):
    """All services at one time (Unix seconds)."""

    at: float
    services: dict[str, Point]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one service, one for each time; null while it had no process."""

    cpu: list[float | None]
    memory_bytes: list[int | None]
    calls_per_s: list[float | None]
    failed: list[int | None]
    queued: list[int | None]
    p50_ms: list[float | None]
    p99_ms: list[float | None]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of services over time."""

    at: list[float]
    services: dict[str, Series]


FIGURES = Point.__struct_fields__


def history_of(samples: Sequence[Sample]) -> History:
    """Return samples as series."""
    names = {name for each in samples for name in each.services}
    return History(
        at=[each.at for each in samples],
        services={name: _series([each.services.get(name) for each in samples]) for name in sorted(names)},
    )


def _series(points: list[Point | None]) -> Series:
    return Series(**{name: [None if each is None else getattr(each, name) for each in points] for name in FIGURES})


def merged(samples: Sequence[Sample]) -> Sample:
    """Return one sample for several: failures are added, the longest queue and the longest p99 count, the rest is
    averaged. It has the time of the last one."""
    names = {name for each in samples for name in each.services}
    found = {name: [each.services[name] for each in samples if name in each.services] for name in sorted(names)}
    return Sample(samples[-1].at, {name: _merged(points) for name, points in found.items()})


def _merged(points: Sequence[Point]) -> Point:
    def known(figure: str) -> list[float]:
        return [value for each in points if (value := getattr(each, figure)) is not None]

    def mean(figure: str) -> float | None:
        return round(sum(values) / len(values), 3) if (values := known(figure)) else None

    def whole(value: float | None) -> int | None:
        return None if value is None else round(value)

    return Point(
        cpu=mean("cpu"),
        memory_bytes=whole(mean("memory_bytes")),
        calls_per_s=mean("calls_per_s"),
        failed=whole(sum(failed)) if (failed := known("failed")) else None,
        queued=whole(max(known("queued"), default=None)),
        p50_ms=mean("p50_ms"),
        p99_ms=max(known("p99_ms"), default=None),
    )
