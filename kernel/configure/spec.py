"""Child specs, as in Erlang/OTP: what runs, how it starts, and how many failures make a crash loop."""

from __future__ import annotations

import collections
import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.manifest import Supervised

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Seconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class Restart(enum.StrEnum):
    """When a dead service is started again."""

    PERMANENT = "permanent"
    """Always, even after an orderly end."""
    TRANSIENT = "transient"
    """Only after a crash."""
    TEMPORARY = "temporary"
    """Never."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before a restart: not at all after healthy time, otherwise `base_s * factor**n`, up to
    `max_s`."""

    base_s: Positive = 0.1
    """Long enough to free the dead process's ports, locks and files; short enough to go unnoticed."""
    factor: Annotated[float, Meta(ge=1)] = 2.0
    """Doubling is customary: seven consecutive deaths take a few seconds, so a real crash loop is reported quickly."""
    max_s: Positive = 30.0
    """A service must not stay down, once the cause is gone, for longer than a person is willing to wait."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """Delays are lengthened by up to this fraction, so that services killed together do not all start together."""
    healthy_after_s: Seconds = 5.0
    """A service that has been READY for this long is healthy: start-up defects show within seconds."""
    retry_s: Positive = 30.0
    """Delay before a FAILED service is retried: most causes, such as a full disk, are fixed by then."""


class ServiceSpec(Supervised, frozen=True, kw_only=True):
    """One process of a service."""

    module: str
    """Module that defines `open_service`."""
    zygote: str | None = None
    """Name of the zygote that forks it; None if it always starts from scratch."""
    rests_after_s: Positive | None = None
    """Seconds without any call after which its process ends, for services that only act when called. None: never."""
    grows_after_s: Positive | None = None
    """How long calls wait for its pool before a process of it that rests is started. None: not at all."""
    depends_on: tuple[str, ...] = ()
    """Services that must be READY once before it starts for the first time. Their later deaths do not affect it."""
    modes: tuple[str, ...] = ()
    """Fallback modes, best first (`cuda`, `cpu`)."""
    descend_after: Annotated[int, Meta(ge=1)] = 3
    """Consecutive unhealthy deaths in one mode before the next mode is tried: one may be chance, three are not."""
    climb_after_s: Positive = 600.0
    """Healthy time in a lower mode before a better one is tried. Each try costs a restart, so it is rare."""
    restart: Restart = Restart.PERMANENT
    """Permanent by default: the services of a back end should keep running."""
    intensity: Annotated[int, Meta(ge=0)] = 6
    """More deaths than this within `period_s` are a crash loop. A service that always dies at once gets there in about
    6 s: longer than passing disturbances, shorter than a caller's patience."""
    period_s: Positive = 30.0
    """Window for `intensity`: short, so that unrelated deaths hours apart never add up."""
    backoff: Backoff = Backoff()
    ping_interval_s: Positive = 1.0
    """A ping costs 0.1 ms, and people hardly notice stalls shorter than a second. A process at rest is pinged less
    often (`kernel.supervisor.rest`)."""
    shutdown_timeout_s: Positive = 5.0
    """Time for in-flight calls to finish when it is told to end."""
    term_timeout_s: Positive = 2.0
    """SIGTERM cancels in-flight calls, which takes no longer than closing a database."""
    abort_timeout_s: Positive = 1.0
    """SIGABRT only prints stacks and ends the process, usually within a millisecond."""
    thread_limit: Annotated[int, Meta(gt=0)] | None = None
    """Above this the service is ended; a service with its own user cannot start many more. None: no limit."""
    queue: Annotated[int, Meta(ge=0)] = 256
    """Calls that may wait: room for a burst of an agent's parallel calls, not for an hour's backlog."""
    env: dict[str, str] = {}  # noqa: RUF012  # msgspec copies it
    """Additional environment variables."""
    oom_score_adj: Annotated[int, Meta(ge=0, le=1000)] = 500
    """When memory runs out, the system kills a service before the kernel, which alone can restart others."""
    log_max_bytes: Annotated[int, Meta(ge=4096)] = 8 * 1024 * 1024
    """Size at which the log is rotated: large enough to explain a crash, too small to fill a disk."""


class ZygoteSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has imported what its services need, and forks them."""

    name: Name
    preload: tuple[str, ...]
    """Modules to import, but not use, before the fork."""
    modules: tuple[str, ...] = ()
    """Modules of its services. Each is imported at its first fork, or earlier when the zygote is idle."""
    on_demand: tuple[str, ...] = ()
    """Modules of services that there may be later. Each is imported at its first fork."""
    rests_after_s: Seconds | None = None
    """Seconds without any of its services after which it ends; it loads again for the next start. None: it stays."""
    wait_s: Seconds = 2.0
    """How long a start waits for a loading zygote before the service is started from scratch."""
    load_timeout_s: Positive = 120.0
    """Loading torch and transformers from a cold, slow disk takes a minute; longer is a hang."""
    stalled_s: Positive = 5.0
    """Time without using any processor while loading, as when it was stopped, after which it is killed."""
    fork_timeout_s: Positive = 5.0
    """A fork takes 10 ms. 5 s leaves room for a swapping machine; after that, the zygote is replaced."""


def check(specs: tuple[ServiceSpec, ...], zygotes: tuple[ZygoteSpec, ...] | None = None) -> None:
    """Raise ValueError, naming the field, if the specs (and zygotes, if given) are inconsistent."""
    names = collections.Counter(spec.name for spec in specs)
    known_zygotes = [zygote.name for zygote in zygotes or ()]
    for spec in specs:
        if names[spec.name] > 1:
            raise ValueError(f"`name`: {spec.name!r} is used twice")
        if missing := [name for name in spec.depends_on if name not in names]:
            raise ValueError(f"{spec.name}: `depends_on` names {missing[0]!r}, which is not among the services")
        if zygotes is not None and spec.zygote is not None and spec.zygote not in known_zygotes:
            known = ", ".join(sorted(known_zygotes)) or "none"
            raise ValueError(f"{spec.name}: `zygote` names {spec.zygote!r}; known: {known}")
    shutdown_waves(specs)


def shutdown_waves(specs: tuple[ServiceSpec, ...]) -> tuple[tuple[str, ...], ...]:
    """Return the shutdown order: services without dependents first; each wave ends at once. Raises ValueError."""
    left = {spec.name: set(spec.depends_on) for spec in specs}
    waves: list[tuple[str, ...]] = []
    while left:
        needed = set().union(*left.values())
        wave = tuple(name for name in reversed(left) if name not in needed)
        if not wave:
            raise ValueError(f"`depends_on`: {', '.join(left)} depend on each other in a cycle")
        waves.append(wave)
        for name in wave:
            del left[name]
    return tuple(waves)
