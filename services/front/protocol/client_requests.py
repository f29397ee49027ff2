"""What a running call sends to its client: progress, log lines and questions.

Progress values only increase.  They are sent at most twenty times a second; the last one before the result is always
sent.  How the client is asked depends on its revision: see `proto.mcp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import trio

from proto.approvals import QUESTION
from proto.errors import Cancelled, Forbidden, InvalidParams, OperationError
from proto.json_types import JsonObject
from proto.mcp import CAPABILITIES, CAPABILITY_OF, INPUTS, MISSING_CAPABILITY
from services.front.protocol.messages import notification

PROGRESS_INTERVAL_S = 0.05
"""Shortest time between two progress notifications of one call; a person cannot see more."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Log levels of RFC 5424, in increasing severity."""

DEFAULT_LEVEL = "info"
"""The level until a client with a handshake sets another.  A client of 2026-07-28 gets log lines only if its request
names a level."""


class CallClient:
    """The client end of one call.

    Args:
        send: sends a message that belongs to the call; never blocks, and drops it if the client has gone.
        capabilities: as the client declared them, unchecked.
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
        """Ask a client with a handshake.  Raises LinckiaError if it refuses or cannot be reached."""
        raise AssertionError("operations that ask are not on the fast path")


class InputRequired(Exception):
    """The call ended with questions; the client answers them by repeating the call."""

    def __init__(self, inputs: JsonObject, state: str) -> None:
        super().__init__("input required")
        self.inputs = inputs
        self.state = state


class CallRequests:
    """`services.runtime.dispatch.ClientRequests` for one call.

    Args:
        token: the client's progress token; None if it wants no progress.
        level: the lowest level of log lines that the client wants; None for no log lines.
        asks: whether the operation declared `asks=True`.
        approves: whether the client may be asked to approve the call.
        answers: what the client has answered so far, by name (2026-07-28).
        interval_s: shortest time between two progress notifications; in between, later ones replace earlier ones.
    """

    def __init__(
        self,
        client: CallClient,
        nursery: trio.Nursery,
        *,
        token: str | int | None = None,
        level: str | None = None,
        asks: bool = False,
        approves: bool = False,
        answers: Mapping[str, Any] | None = None,
        interval_s: float = PROGRESS_INTERVAL_S,
    ) -> None:
        self._client = client
        self._nursery = nursery
        self._token = token
        self._level = LEVELS.index(level) if level in LEVELS else len(LEVELS)
        self._asks = asks
        self._approves = approves
        self._answers = dict(answers or {})
        self._interval_s = interval_s
        self._asked = 0
        self._open: JsonObject = {}
        self._sent_at = float("-inf")
        self._high = float("-inf")
        self._pending: JsonObject | None = None
        self._finished = False
        self.scope = trio.CancelScope()
        """Scope of the call; cancelled when the call must end with questions."""

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        # The protocol requires increasing values; drop repeated ones.
        if self._token is None or self._finished or done <= self._high:
            return
        self._high = done
        figures = {"progress": done} if total is None else {"progress": done, "total": total}
        whole = {name: int(value) if float(value).is_integer() else value for name, value in figures.items()}
        text = {} if message is None else {"message": message}
        is_waiting = self._pending is not None
        self._pending = {"progressToken": self._token, **whole, **text}
        wait_s = self._sent_at + self._interval_s - trio.current_time()
        if wait_s <= 0:
            self._flush()
        elif not is_waiting:
            self._nursery.start_soon(self._flush_later, wait_s)

    async def _flush_later(self, wait_s: float) -> None:
        await trio.sleep(wait_s)
        self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._sent_at = trio.current_time()
            self._client.notify("notifications/progress", pending)

    def finish(self) -> None:
        """End the call: send the pending progress, and nothing after it."""
        self._flush()
        self.close()

    def close(self) -> None:
        """Send nothing more, because the call has its result or was cancelled."""
        self._pending = None
        self._finished = True

    def log(self, level: str, logger: str, message: str) -> None:
        if not self._finished and level in LEVELS and LEVELS.index(level) >= self._level:
            self._client.notify("notifications/message", {"level": level, "logger": logger, "data": message})

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        if method == CAPABILITIES:
            return dict(self._client.capabilities)
        is_approval = method == INPUTS and params.get("inputs", {}).keys() == {QUESTION}
        if not (self._approves if is_approval else self._asks):
            raise Forbidden("the operation asks the client but does not declare `asks=True`")
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
                    f"the client lacks the capability `{capability}`, which this needs",
                    code=MISSING_CAPABILITY,
                    data={"capability": capability},
                )
        if self._client.modern:
            return await self._replay(inputs)
        # A client with a handshake is asked one question after the other.
        return {name: await self._client.request(q["method"], q["params"]) for name, q in inputs.items()}

    async def _replay(self, inputs: JsonObject) -> JsonObject:
        missing = {name: question for name, question in inputs.items() if name not in self._answers}
        if not missing:
            return {name: checked_answer(name, q["method"], self._answers[name]) for name, q in inputs.items()}
        self._open.update(missing)
        self.scope.cancel()
        raise Cancelled("the client is asked first and repeats the call with its answers")

    @property
    def asking(self) -> bool:
        """Whether the call was ended to ask the client."""
        return bool(self._open)

    def input_required(self) -> InputRequired:
        """Return the questions as the outcome of the call."""
        return InputRequired(self._open, msgspec.json.encode(self._answers).decode())


_REQUIRED = {
    "elicitation/create": ("action",),
    "sampling/createMessage": ("role", "content", "model"),
    "roots/list": ("roots",),
}


def checked_answer(name: str, method: str, answer: object) -> JsonObject:
    """Return the client's answer to `method`.  Raises InvalidParams if a required member is missing."""
    if not isinstance(answer, dict):
        raise InvalidParams(f"input response `{name}` is not an object", field=f"inputResponses.{name}")
    for key in _REQUIRED.get(method, ()):
        if key not in answer:
            raise InvalidParams(f"input response `{name}` lacks `{key}`", field=f"inputResponses.{name}.{key}")
    return answer


def merged_answers(state: str | None, responses: Mapping[str, Any] | None) -> JsonObject:
    """Return the client's answers from earlier rounds (`state`, unsealed) and from this one.

    Raises:
        InvalidParams: the state was not issued by this server.
    """
    answers: JsonObject = {}
    if state:
        try:
            answers = msgspec.json.decode(state, type=JsonObject)
        except msgspec.DecodeError:
            raise InvalidParams("requestState was not issued by this server", field="requestState") from None
    return {**answers, **(responses or {})}
