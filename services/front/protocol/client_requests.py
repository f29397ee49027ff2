"""The way back from a running call to its client: progress, log lines and questions.

Progress reaches the client in order, never going back, and at most twenty times a second; the last report before the
result is always sent.  Questions are answered in the way of the client's revision: see `proto.mcp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import trio

from linckia.proto.errors import Cancelled, Forbidden, InvalidParams, OperationError
from linckia.proto.json_types import JsonObject
from linckia.proto.mcp import CAPABILITIES, CAPABILITY_OF, INPUTS, MISSING_CAPABILITY
from linckia.services.front.protocol.messages import notification

PROGRESS_INTERVAL_S = 0.05
"""Between two progress notifications of one call: a person sees no more, and a client need not parse more."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""RFC 5424, rising."""

DEFAULT_LEVEL = "info"
"""The level until a client with a handshake sets another.  A client of 2026-07-28 gets log lines only if its request
names a level."""


class CallClient:
    """The client end of one call.

    Args:
        send: sends a message that belongs to the call; never blocks, and drops it if the client has gone.
        capabilities: what the client declared, as it wrote it; the reader checks their form.
        modern: whether the client speaks a revision without a handshake (2026-07-28).
    """

    def __init__(self, send: Callable[[bytes], None], capabilities: Mapping[str, Any], *, modern: bool) -> None:
        self.modern = modern
        self.capabilities = capabilities
        self._send = send

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification that belongs to the call."""
        self._send(notification(method, params))

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        """Ask a client with a handshake.  Raises LinckiaError: it refuses, or cannot be reached."""
        raise AssertionError("operations that ask are not on the fast path")


class InputRequired(Exception):
    """The call ends with questions, which the client will answer by making it again."""

    def __init__(self, inputs: JsonObject, state: str) -> None:
        super().__init__("input required")
        self.inputs = inputs
        self.state = state


class CallRequests:
    """`proto.dispatch.ClientRequests` for one call.

    Args:
        token: the client's progress token; None where it wants no progress.
        level: the lowest level of log lines the client wants; None for none.
        asks: whether the operation declared that it asks.
        answers: what the client has answered so far, by name (2026-07-28).
    """

    def __init__(
        self,
        client: CallClient,
        nursery: trio.Nursery,
        *,
        token: str | int | None = None,
        level: str | None = None,
        asks: bool = False,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._token = token
        self._level = LEVELS.index(level) if level in LEVELS else len(LEVELS)
        self._asks = asks
        self._answers = dict(answers or {})
        self._asked = 0
        self._open: JsonObject = {}
        self._sent_at = float("-inf")
        self._high = float("-inf")
        self._held: JsonObject | None = None
        self._finished = False
        self.scope = trio.CancelScope()
        """Around the call; cancelled when the call must end with questions."""

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        # The protocol wants each value above the one before; a handler that repeats itself changes nothing.
        if self._token is None or self._finished or done <= self._high:
            return
        self._high = done
        figures = {"progress": done} if total is None else {"progress": done, "total": total}
        whole = {name: int(value) if float(value).is_integer() else value for name, value in figures.items()}
        said = {} if message is None else {"message": message}
        is_waiting = self._held is not None
        self._held = {"progressToken": self._token, **whole, **said}
        wait_s = self._sent_at + PROGRESS_INTERVAL_S - trio.current_time()
        if wait_s <= 0:
            self._flush()
        elif not is_waiting:
            self._nursery.start_soon(self._flush_later, wait_s)

    async def _flush_later(self, wait_s: float) -> None:
        await trio.sleep(wait_s)
        self._flush()

    def _flush(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._sent_at = trio.current_time()
            self._client.notify("notifications/progress", held)

    def finish(self) -> None:
        """The call has its result: what was held back is sent, and nothing after."""
        self._flush()
        self.close()

    def close(self) -> None:
        """Nothing more is sent: after its result, or once it was cancelled, a call is silent."""
        self._held = None
        self._finished = True

    def log(self, level: str, logger: str, message: str) -> None:
        if not self._finished and level in LEVELS and LEVELS.index(level) >= self._level:
            self._client.notify("notifications/message", {"level": level, "logger": logger, "data": message})

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        if method == CAPABILITIES:
            return dict(self._client.capabilities)
        if not self._asks:
            raise Forbidden("the operation asks the client and does not declare it (`asks=True`)")
        if method == INPUTS:
            inputs = params.get("inputs", {})
            return await self._ask_all(inputs)
        self._asked += 1
        name = f"{CAPABILITY_OF.get(method, 'input')}-{self._asked}"
        answer: JsonObject = (await self._ask_all({name: {"method": method, "params": params}}))[name]
        return answer

    async def _ask_all(self, inputs: JsonObject) -> JsonObject:
        for question in inputs.values():
            capability = CAPABILITY_OF.get(question["method"])
            if capability is None:
                raise InvalidParams(f"a client cannot be asked {question['method']!r}", field="method")
            if capability not in self._client.capabilities:
                raise OperationError(
                    f"the client does not have the capability `{capability}`, which this needs",
                    code=MISSING_CAPABILITY,
                    data={"capability": capability},
                )
        if self._client.modern:
            return await self._replay(inputs)
        # A client with a handshake shows one question after the other.
        return {name: await self._client.request(q["method"], q["params"]) for name, q in inputs.items()}

    async def _replay(self, inputs: JsonObject) -> JsonObject:
        missing = {name: question for name, question in inputs.items() if name not in self._answers}
        if not missing:
            return {name: checked_answer(name, q["method"], self._answers[name]) for name, q in inputs.items()}
        self._open.update(missing)
        self.scope.cancel()
        raise Cancelled("the client is asked first; the call is made again with its answers")

    @property
    def asking(self) -> bool:
        """Whether the call was ended to ask the client."""
        return bool(self._open)

    def input_required(self) -> InputRequired:
        """The questions, as the outcome of the call."""
        return InputRequired(self._open, msgspec.json.encode(self._answers).decode())


_REQUIRED = {
    "elicitation/create": ("action",),
    "sampling/createMessage": ("role", "content", "model"),
    "roots/list": ("roots",),
}


def checked_answer(name: str, method: str, answer: object) -> JsonObject:
    """The client's answer, if it is one to `method`.  Raises InvalidParams: says what is missing."""
    if not isinstance(answer, dict):
        raise InvalidParams(f"input response `{name}` is not an object", field=f"inputResponses.{name}")
    for key in _REQUIRED.get(method, ()):
        if key not in answer:
            raise InvalidParams(f"input response `{name}` lacks `{key}`", field=f"inputResponses.{name}.{key}")
    return answer


def merged_answers(state: str | None, responses: Mapping[str, Any] | None) -> JsonObject:
    """All that the client has answered: in earlier rounds (`state`, unsealed) and in this one.  Raises InvalidParams:
    the state is none of ours."""
    answers: JsonObject = {}
    if state:
        try:
            answers = msgspec.json.decode(state, type=JsonObject)
        except msgspec.DecodeError:
            raise InvalidParams("requestState is not one that this server gave", field="requestState") from None
    return {**answers, **(responses or {})}
