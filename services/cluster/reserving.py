"""A process that Ray starts on a node, with what it reserves there.

It may outlast the request that it was made for: whoever could not wait for it runs elsewhere, and takes it with the
next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray
import trio

from proto.wire.cluster import Resources
from services.cluster.node import NodeActor

NODE_ID = "ray.io/node-id"
"""Label that Ray gives each node."""

CALLS_AT_ONCE = 4
"""Threads of an actor: one that waits for the end of the process, and some for signals."""

KEPT_S = 600.0
"""Time after which one that nobody takes is given up."""


class Reservation:
    """`run` must be running until `done` is set; `request`, `node` and `address` hold then, or `error` does."""

    def __init__(self, resources: Resources, avoid: Sequence[str], result: Callable[[Any], Awaitable[Any]]) -> None:
        """`avoid` are ids of nodes; `result` waits for a result of Ray."""
        self.resources = resources
        self.done = trio.Event()
        self.error: Exception | None = None
        self.request = self.node = self.address = ""
        self.kept_until = 0.0
        self._result = result
        options: dict[str, Any] = {
            "num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus, "resources": resources.resources,
            "max_restarts": 0, "max_concurrency": CALLS_AT_ONCE,
        }  # fmt: skip
        if resources.memory_bytes:
            options["memory"] = resources.memory_bytes
        labels = dict(resources.labels)
        if avoid:
            labels[NODE_ID] = f"!in({','.join(avoid)})"
        if labels:
            options["label_selector"] = labels
        self.actor = ray.remote(**options)(NodeActor).remote()

    async def run(self) -> None:
        """Wait until it has started."""
        try:
            self.request = await self._result(self.actor.request.remote())
            self.node, self.address = await self._result(self.actor.place.remote())
        except (ray.exceptions.RayError, OSError, ValueError, TypeError) as error:
            self.error = error
        self.done.set()

    def release(self) -> None:
        """End it, or have Ray not start it."""
        ray.kill(self.actor)
