"""Child specs, after Erlang/OTP's: what runs, how it is started, and how often it may fail before that is stated."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Seconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]


class Restart(enum.StrEnum):
    """When a service that died is started again."""

    PERMANENT = "permanent"
    """Always, also after an orderly end."""
    TRANSIENT = "transient"
    """After a crash only."""
    TEMPORARY = "temporary"
    """Never."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before a restart: not at all after healthy time, then `base_s * factor**n` up to `max_s`."""

    base_s: Positive = 0.1
    """Long enough that a port, a lock or a file of the dead process is free; short enough not to be noticed."""
    factor: Annotated[float, Meta(ge=1)] = 2.0
    """Doubling, as everywhere: seven deaths in a row span a few seconds, so a real crash loop is stated quickly."""
    max_s: Positive = 30.0
    """A cause that went away must not keep a service down for longer than a person is willing to wait."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """The delay is lengthened by up to this share, so that services killed together do not all start together."""
    healthy_after_s: Seconds = 5.0
    """READY for so long is healthy: a defect of start-up shows in its first seconds."""
    retry_s: Positive = 30.0
    """A FAILED service is tried again after so long: most causes (a full disk) are put right meanwhile."""


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One service."""

    name: Name
    module: str
    """Where `open_service` is."""
    zygote: str | None = None
    """The zygote that forks it; None: it is always started from nothing."""
    standby: bool = True
    """Whether a process forked ahead waits for this one's death (`standby`).  Only where there is a zygote."""
    standby_first_s: Seconds = 1.0
    """From the first READY to the first such process: while the system starts, clients wait for the processors."""
    standby_rests_after_s: Positive | None = 300.0
    """Time without a client's call after which that process is given up, until there is one again.  None: never."""
    rests_after_s: Positive | None = None
    """Time without any call after which it has no process, for what does nothing unless it is called.  None: never."""
    rests_while: tuple[str, str] | None = None
    """What it must say of itself for that: a key of its `info`, and the value.  None: it rests whatever it says."""
    handoff: bool = False
    """Whether it gets a socket beside its link, over which the kernel hands it what clients come in by."""
    depends_on: tuple[str, ...] = ()
    """Services whose first READY its own first start waits for.  Later deaths of theirs leave it alone."""
    modes: tuple[str, ...] = ()
    """Fall-back modes, best first (`cuda`, `cpu`)."""
    descend_after: Annotated[int, Meta(ge=1)] = 3
    """Unhealthy deaths in a row in one mode before the next mode is tried: one may be chance, three are not."""
    climb_after_s: Positive = 600.0
    """Healthy time in a lower mode before the better one is tried again; a try costs a restart, so not often."""
    restart: Restart = Restart.PERMANENT
    """A back end's services are there to stay."""
    intensity: Annotated[int, Meta(ge=0)] = 6
    """More deaths than this within `period_s` are a crash loop; what dies at once gets there in about 6 s: past any
    passing disturbance, before a caller's patience ends."""
    period_s: Positive = 30.0
    """The window of `intensity`: short, so that unrelated deaths hours apart are never added up."""
    backoff: Backoff = Backoff()
    startup_timeout_s: Positive = 60.0
    """From spawn to READY: a cold page cache makes loading a model take tens of seconds on a slow disk."""
    ping_interval_s: Positive = 1.0
    """A ping costs 0.1 ms; a second is as finely as a person perceives a stall."""
    hang_timeout_s: Positive = 5.0
    """A healthy event loop answers in milliseconds, a starved one in a second; deadlines of callers are 10 s."""
    stall_s: Positive | None = None
    """The same for what never keeps its loop busy: time in which it slept or had a processor, and answered no ping,
    without that in which it waited for one (`processes`).  None: it may compute for as long as `hang_timeout_s`."""
    shutdown_timeout_s: Positive = 5.0
    """For calls in hand to finish when it is told to end."""
    term_timeout_s: Positive = 2.0
    """SIGTERM cancels the calls in hand, which needs no longer than closing a database does."""
    abort_timeout_s: Positive = 1.0
    """SIGABRT only prints stacks and dies; a millisecond is usual."""
    memory_limit_bytes: Annotated[int, Meta(gt=0)] | None = None
    """Of its own, not file-backed, memory (swapped out included); past it the service is replaced.  None: no limit."""
    disk_limit_bytes: Annotated[int, Meta(gt=0)] | None = None
    """Of its own folder and of files that it deleted and has open; past it the service is ended.  None: no limit."""
    thread_limit: Annotated[int, Meta(gt=0)] | None = None
    """Past it the service is ended; one that has a user of its own cannot start many more.  None: no limit."""
    in_flight: Annotated[int, Meta(ge=1)] = 64
    """Calls served at once; more only share the same two cores."""
    queue: Annotated[int, Meta(ge=0)] = 256
    """Callers that wait for room: a burst of an agent's parallel calls, not an hour's backlog."""
    env: dict[str, str] = {}
    """Added to the environment."""
    oom_score_adj: Annotated[int, Meta(ge=0, le=1000)] = 500
    """Out of memory, the operating system takes a service before the kernel, which alone can start another."""
    log_max_bytes: Annotated[int, Meta(ge=4096)] = 8 * 1024 * 1024
    """Size at which the service's log is rotated: enough to hold the story of a crash, never a filled disk."""


class ZygoteSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has imported what its services need, and forks them."""

    name: Name
    preload: tuple[str, ...]
    """Modules to import, and never to use before the fork."""
    modules: tuple[str, ...] = ()
    """Those of its services: each is imported when it is first to be forked, or while there is nothing else to do."""
    rests_after_s: Seconds | None = None
    """Time without any of its services after which it is ended, to load again when one is to start.  None: it stays."""
    wait_s: Seconds = 2.0
    """How long a start waits for a zygote that is still loading, before the service is started from nothing."""
    load_timeout_s: Positive = 120.0
    """Loading torch and transformers from a cold, slow disk takes a minute; longer is a hang."""
    stalled_s: Positive = 5.0
    """Without any processor time while it loads, as one has that was stopped: then it is killed."""
    fork_timeout_s: Positive = 5.0
    """A fork takes 10 ms; 5 s leaves room for a swapping machine, then the zygote is replaced."""


def check(specs: tuple[ServiceSpec, ...], zygotes: tuple[ZygoteSpec, ...] | None = None) -> None:
    """Raises ValueError, which names the field, where specs (and zygotes, if given) make no sense together."""
    names = [spec.name for spec in specs]
    known_zygotes = [zygote.name for zygote in zygotes or ()]
    for spec in specs:
        if names.count(spec.name) > 1:
            raise ValueError(f"`name`: {spec.name!r} is used twice")
        if missing := [name for name in spec.depends_on if name not in names]:
            raise ValueError(f"{spec.name}: `depends_on` names {missing[0]!r}, which is not among the services")
        if zygotes is not None and spec.zygote is not None and spec.zygote not in known_zygotes:
            known = ", ".join(sorted(known_zygotes)) or "none"
            raise ValueError(f"{spec.name}: `zygote` names {spec.zygote!r}; known: {known}")
    shutdown_waves(specs)


def shutdown_waves(specs: tuple[ServiceSpec, ...]) -> tuple[tuple[str, ...], ...]:
    """The order of an orderly end: services without dependents first, each wave at once.  Raises ValueError."""
    left = {spec.name: set(spec.depends_on) for spec in specs}
    waves: list[tuple[str, ...]] = []
    while left:
        needed = set().union(*left.values())
        wave = tuple(name for name in reversed(left) if name not in needed)
        if not wave:
            raise ValueError(f"`depends_on`: {', '.join(left)} depend on each other in a circle")
        waves.append(wave)
        for name in wave:
            del left[name]
    return tuple(waves)
