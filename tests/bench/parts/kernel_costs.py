"""The processor time that the router and the restart policy take, by the number of workers of a pool."""

from __future__ import annotations

import collections
import signal
import time

import trio

from kernel.configure.spec import ServiceSpec
from kernel.router.generation import Generation, Limits, ServiceState
from kernel.router.ports import Cause, CauseKind
from kernel.router.router import Router
from kernel.supervisor import policy, policy_events
from proto import ops
from proto.operation import operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.frames import AnyFrame, Call, Return
from tests.unit.router.ops import Said, Say

POOL = "speaker"
"""The service of the operations that are called."""


def instances(workers: int) -> list[str]:
    """Return the names of a pool's processes."""
    return [POOL, *(f"{POOL}-{n}" for n in range(2, workers + 1))]


class _Posts:
    """A channel that only stores posted frames, so that the measurement covers the router's own work."""

    is_behind = False
    held_bytes = 0

    def __init__(self, posted: collections.deque[tuple[Generation, AnyFrame]]) -> None:
        self._posted = posted
        self.generation: Generation | None = None

    def post(self, frame: AnyFrame) -> None:
        if self.generation is not None:
            self._posted.append((self.generation, frame))


def router_cost_us(workers: int, calls: int = 5_000, *, share: float = 0.5, resting: bool = False) -> float:
    """Return the processor time, in µs, that the router takes for a call of a front and its reply.

    `share` of the workers always have a call in flight. `resting`: the last worker rests.
    """

    async def measure() -> float:
        names = instances(workers)
        limits = {"front": Limits(64, 256), POOL: Limits(64, 256)}
        router = Router(ops.load(["tests.unit.router.ops"]), limits, {POOL: names}, fronts=("front",))
        posted: collections.deque[tuple[Generation, AnyFrame]] = collections.deque()
        for name in ("front", *names):
            generation = Generation(name, 1)
            posts = _Posts(posted)
            generation.channel = posts  # type: ignore[assignment]  # only `post` is called
            if name == names[-1] and resting and workers > 1:
                router.state(name, ServiceState.RESTING, "", None)
                continue
            if name == "front":
                front = generation
            else:
                posts.generation = generation
            router.up(generation)
            router.state(name, ServiceState.READY, "", None)
        params = frames.pack_body(Say(text="text"))
        body = frames.pack_body(Said(text="text", generation=1, caller="client"))
        origin = Origin("client", trace=frames.new_trace())

        def make(first: int, count: int) -> None:
            for number in range(first, first + count):
                call = Call(number, operation_of(Say).name, params, 10_000, origin, 1)
                router.frame(front, call)
                if len(posted) > max(1, workers * share):
                    generation, frame = posted.popleft()
                    assert isinstance(frame, Call)
                    router.frame(generation, Return(frame.id, body))

        make(1, max(200, workers))
        begun = time.thread_time()
        make(100_000, calls)
        return (time.thread_time() - begun) / calls * 1e6

    return trio.run(measure)


def policy_cost_us(workers: int, deaths: int = 100) -> float:
    """Return the processor time, in µs, for deciding about a death and the worker's return, with these workers."""
    plan = policy.Plan(tuple(ServiceSpec(name=f"worker-{n}", module="simulated") for n in range(workers)))
    state, _ = policy.decide(plan, plan.first(), policy_events.Boot(), 0.0, 0.0)
    for n in range(workers):
        state, _ = policy.decide(plan, state, policy_events.BecameReady(f"worker-{n}", 1), 0.0, 0.0)
    killed = Cause(CauseKind.SIGNAL, signal.SIGKILL, "killed")
    begun = time.thread_time()
    for n in range(deaths):
        name = f"worker-{n % workers}"
        generation = state.children[name].generation
        state, _ = policy.decide(plan, state, policy_events.Died(name, generation, killed), 100.0 + n, 0.0)
        state, _ = policy.decide(plan, state, policy_events.BecameReady(name, generation + 1), 100.0 + n, 0.0)
    return (time.thread_time() - begun) / deaths * 1e6
