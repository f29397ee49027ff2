"""Questions of servers to clients: sampling, elicitation, roots.

A client with a handshake is asked while its call waits. One without ends its call with the question, and makes it again
with the answer: until then the server's request stays open. A server without a handshake does the same towards us: it
ends the call with its questions (`input_required`).
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

import trio
from msgspec import UNSET, Raw

from proto import mcp
from proto.errors import Kind, LinckiaError, OperationError
from proto.mcp import CAPABILITY_OF, INPUTS
from services.mounts.link import messages
from services.mounts.link.exchange import Exchange
from services.mounts.link.messages import Id, JsonObject, Message

MAX_ROUNDS = 10
"""Rounds of questions for one call."""
STATE_ONLY_S = 0.1
"""Pause before a call is repeated for a server that has no question, but wants to be called again."""

REFUSED = -32603
SHARED = (
    "calls of several clients are in flight, and MCP does not say which of them this is for;"
    ' `share = "client"` gives each client a server of its own'
)


class Server(Protocol):
    """What questions need of the server's instance."""

    async def reply(self, message: bytes) -> None: ...

    async def repeat(self, exchange: Exchange, params: bytes) -> Message: ...


class Questions:
    """Passes the questions of one server on to clients."""

    def __init__(self, server: Server, nursery: trio.Nursery, roots: tuple[str, ...]) -> None:
        self._server = server
        self._nursery = nursery
        self._roots = roots
        self._asking: dict[Id, trio.CancelScope] = {}

    def receive(self, message: Message, asker: Exchange | None) -> None:
        """Answer a request of the server; `asker` is the call that it is for, if that is known."""
        assert not isinstance(message.id, type(UNSET))
        self._nursery.start_soon(self._answer, message.id, str(message.method), message, asker)

    def withdraw(self, number: object) -> None:
        """Cancel a question that the server does not want to be answered any more."""
        if isinstance(number, str | int) and (scope := self._asking.get(number)) is not None:
            scope.cancel()

    async def _answer(self, number: Id, method: str, message: Message, asker: Exchange | None) -> None:
        if method == "ping":
            await self._server.reply(messages.result(number, {}))
        elif method not in CAPABILITY_OF:
            await self._server.reply(messages.error(number, mcp.METHOD_NOT_FOUND, f"no method {method}"))
        elif asker is None:
            await self._answer_alone(number, method)
        else:
            found = messages.value(message.params)
            scope = self._asking[number] = trio.CancelScope()
            try:
                with scope:
                    await self._ask(number, method, found if isinstance(found, dict) else {}, asker)
            finally:
                self._asking.pop(number, None)

    async def _answer_alone(self, number: Id, method: str) -> None:
        if method == "roots/list":
            await self._server.reply(messages.result(number, self._own_roots()))
        else:
            await self._server.reply(messages.error(number, REFUSED, f"nobody can be asked: {SHARED}"))

    def _own_roots(self) -> JsonObject:
        return {"roots": [{"uri": "file://" + quote(root), "name": root} for root in self._roots]}

    async def _ask(self, number: Id, method: str, params: JsonObject, asker: Exchange) -> None:
        # The connection's own members must not reach another connection.
        params.pop("_meta", None)
        name = asker.ask(number)
        try:
            if asker.request.modern:
                question = {"inputs": {name: {"method": method, "params": params}}}
                answer: Any = (await asker.ctx.ask_client(INPUTS, question)).get(name, {})
            else:
                answer = await asker.ctx.ask_client(method, params)
            reply = messages.result(number, answer)
        except LinckiaError as error:
            has_ended = asker.ctx.cancelled_by_caller or asker.parked_at is not None
            if asker.request.modern and (has_ended or error.failure.kind is Kind.CANCELLED):
                # The call ends with this question; `answer` follows.
                return
            if method == "roots/list":
                reply = messages.result(number, self._own_roots())
            else:
                code = error.failure.code or REFUSED
                reply = messages.error(number, code, error.failure.message, dict(error.failure.data) or None)
        except trio.Cancelled:
            asker.answered(name)
            raise
        if asker.answered(name):
            await self._server.reply(reply)

    async def answer(self, exchange: Exchange, name: str, answer: JsonObject) -> None:
        """Give the server the answer of a client that made its call again."""
        number = exchange.questions.get(name)
        if exchange.answered(name):
            await self._server.reply(messages.result(number, answer))


async def input_rounds(server: Server, exchange: Exchange, reply: Message) -> Message:
    """Ask a client with a handshake what a server without one needs, until that returns its result.

    Raises OperationError, NoReply, Lost, Disallowed, or what asking the client raises.
    """
    original = messages.members(exchange.request.params)
    for _ in range(MAX_ROUNDS):
        said = messages.members(reply.result)
        if messages.value(said.get("resultType", UNSET)) != "input_required":
            return reply
        inputs = messages.value(said.get("inputRequests", UNSET))
        params = {**original}
        params.pop("inputResponses", None)
        if isinstance(inputs, dict) and inputs:
            answers = await exchange.ctx.ask_client(INPUTS, {"inputs": inputs})
            params["inputResponses"] = Raw(messages.encode(answers))
        else:
            await trio.sleep(STATE_ONLY_S)
        params.pop("requestState", None)
        if "requestState" in said:
            params["requestState"] = said["requestState"]
        reply = await server.repeat(exchange, messages.encode(params))
    raise OperationError(f"the server asked more than {MAX_ROUNDS} times for one call")
