"""Answers requests for mounted servers: passes them on, and the replies back, as they were written.

On the surface of a mounted server, all requests about its tools, resources and prompts are passed on. On other surfaces
that is so for calls of mounted tools, and for prompts and resources under their names there. Everything else, such as
the handshake, is answered as for any surface.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import trio
from msgspec import Raw, UnsetType

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.json_types import JsonObject
from proto.mcp import (
    CLIENT_CAPABILITIES,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LOG_LEVEL,
    OWN,
    SERVER_INFO,
    TOOLS_CALL,
    RequestMeta,
)
from proto.mounts import MAX_NAME_CHARS, PROGRESS_S, READ, MountReply, MountRequest, operations_of
from proto.operation import Operation
from services.front.mounted.content import bounded
from services.front.mounted.surface import MountSurface
from services.front.mounted.tools import MountedTool
from services.front.protocol.calls import as_error, completed, handle_result, perform, unknown_tool
from services.front.protocol.client_requests import CallClient, CallRequests, InputRequired, merged_answers
from services.front.protocol.failures import ProtocolError, as_failure, as_tool_result
from services.front.protocol.handshake import is_usual_envelope
from services.front.protocol.lists import MEMBERS
from services.front.protocol.messages import Answer, Envelope, error_message, turn
from services.front.protocol.served import Served
from services.front.protocol.session import Request
from services.front.tasks import TaskHandle, Wanted, wanted_by

if TYPE_CHECKING:
    from services.front.protocol.server import SurfaceServer

    LoadSdk: TypeAlias = Callable[[], Awaitable[SurfaceServer]]

_SUBSCRIBES = {"resources/subscribe", "resources/unsubscribe"}
_PASSED = {TOOLS_CALL, "resources/read", "prompts/get", "completion/complete", *_SUBSCRIBES}

KNOWN_S = 60.0
"""How long the first list of a server that has never started may take; clients give up after about a minute."""

_LIST_FRESH_MS = 1000

_STATE = "linckia:"
"""Prefix of our own request states; all others belong to mounted servers."""

_NULL = Raw(b"null")

_encode = msgspec.json.Encoder().encode


class _Meta(RequestMeta):
    capabilities: dict[str, Any] | UnsetType = msgspec.field(default=msgspec.UNSET, name=CLIENT_CAPABILITIES)
    level: str | None = msgspec.field(default=None, name=LOG_LEVEL)


class _Passed(msgspec.Struct):
    """A request on its way: the mount's operation that carries it, and what it is about."""

    route: Operation[Any]
    method: str
    params: dict[str, Raw]
    name: str
    tool: MountedTool | None = None


class MountedRequests:
    """Requests for mounted servers on one surface."""

    def __init__(self, served: Served, load: LoadSdk) -> None:
        self._served = served
        self._load = load
        self._catalogue = served.mounted.catalogue
        self._names = served.mounted.names

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request for a mounted server; return None if it is not for one."""
        surface, session = self._served.surface, request.session
        if not session.admits_requests:
            return None
        is_own = isinstance(surface, MountSurface)
        is_list = request.method in MEMBERS and is_own
        if not is_list and not (request.method in _PASSED and (is_own or self._names)):
            return None
        if session.modern and request.method in _SUBSCRIBES:
            # That revision has `subscriptions/listen` instead.
            return None
        try:
            params = _params(request.envelope)
            passed = None if is_list else self._passed(request.method, params)
            if not is_list and passed is None:
                return None
            meta = _meta(params)
            if session.modern:
                await self._check_modern(request, params)
            if passed is None:
                assert isinstance(surface, MountSurface)
                return await self._list(request, surface)
            return await self._pass(request, passed, meta)
        except ProtocolError as error:
            return Answer(error_message(request.id, error.code, error.message, error.data), error.code)
        except InvalidParams as error:
            return Answer(error_message(request.id, INVALID_PARAMS, str(error)), INVALID_PARAMS)

    async def _check_modern(self, request: Request, params: Mapping[str, Raw]) -> None:
        """Raise ProtocolError if the envelope or the headers of a request of 2026-07-28 are wrong."""
        if request.headers is None and "_meta" in params and _is_usual(params["_meta"]):
            return
        server = await self._load()
        from services.front.protocol import sdk

        sdk.check_modern(server.sdk, request)

    def tool(self, envelope: Envelope) -> MountedTool | None:
        """Return the mounted tool that a `tools/call` names, if it names one."""
        try:
            params = _params(envelope)
        except InvalidParams:
            return None
        return self._tool(_text(params, "name"))

    def _tool(self, name: str) -> MountedTool | None:
        surface = self._served.surface
        tool = surface.called.get(name)
        return tool if isinstance(tool, MountedTool) else None

    async def _list(self, request: Request, surface: MountSurface) -> Answer:
        params = _params(request.envelope)
        if "cursor" in params:
            raise InvalidParams("unknown cursor: this list has one page", field="cursor")
        if not surface.is_known:
            await self._first_start(request, surface.name)
        freshness = {"ttlMs": _LIST_FRESH_MS, "cacheScope": "private"} if request.session.modern else {}
        members: dict[str, Any] = {MEMBERS[request.method]: surface.lists[MEMBERS[request.method]], **freshness}
        return self._result(request, {name: Raw(_encode(value)) for name, value in members.items()})

    async def _first_start(self, request: Request, mount: str) -> None:
        """Start a server that never ran, and wait until its definitions are known. Raises ProtocolError if it fails."""
        with trio.move_on_after(KNOWN_S):
            try:
                await self._catalogue.start(mount, request.origin)
            except LinckiaError as error:
                raise as_error(error.failure) from None
            await self._catalogue.known(mount)

    def _passed(self, method: str, params: dict[str, Raw]) -> _Passed | None:
        """Return the request as it is passed on; None if it is not for a mounted server."""
        surface = self._served.surface
        if not isinstance(surface, MountSurface):
            return self._renamed(method, params)
        route = operations_of(surface.name)[READ]
        if method == TOOLS_CALL:
            name = _text(params, "name")
            tool = self._tool(name)
            if tool is None:
                raise unknown_tool(name, surface)
            return _Passed(tool.route, method, {**params, "name": _json(tool.tool)}, tool.tool, tool)
        if prompts := surface.offered.own_names.get("prompts"):
            params = _with_own_name(method, params, prompts)
        name = _text(params, "uri") or _text(params, "name")
        return _Passed(route, method, params, name)

    def _renamed(self, method: str, params: dict[str, Raw]) -> _Passed | None:
        """Return a request that names something by its name beside Linckia's own."""
        if method == TOOLS_CALL:
            tool = self._tool(_text(params, "name"))
            if tool is None:
                return None
            return _Passed(tool.route, method, {**params, "name": _json(tool.tool)}, tool.tool, tool)
        if method == "completion/complete":
            reference = self._names.reference(params.get("ref"))
            if reference is None:
                return None
            mount, ref = reference
            return _Passed(operations_of(mount)[READ], method, {**params, "ref": _json(ref)}, mount)
        key = "name" if method == "prompts/get" else "uri"
        found = (self._names.prompt if key == "name" else self._names.resource)(_text(params, key))
        if found is None:
            return None
        mount, name = found
        return _Passed(operations_of(mount)[READ], method, {**params, key: _json(name)}, name)

    async def _pass(self, request: Request, passed: _Passed, meta: _Meta) -> Answer:
        modern = bool(request.session.modern)
        given = meta.capabilities if not isinstance(meta.capabilities, UnsetType) else {}
        capabilities = given if modern else request.session.capabilities
        level = meta.level if modern else request.session.state.level
        params, answers = dict(passed.params), {}
        state = _text(params, "requestState")
        if state.startswith(_STATE):
            responses = msgspec.json.decode(params.pop("inputResponses", Raw(b"{}")))
            answers = merged_answers(state.removeprefix(_STATE), responses)
            del params["requestState"]
        token = None if isinstance(meta.progress_token, UnsetType) else meta.progress_token
        client_requests = CallRequests(
            SessionClient(request, capabilities, modern=modern),
            request.nursery,
            token=token,
            level=level,
            asks=True,
            approves=True,
            answers=answers,
            interval_s=PROGRESS_S,
        )
        asked = MountRequest(
            method=passed.method,
            name=passed.name[:MAX_NAME_CHARS],
            params=_encode(_without_connection(params)),
            answers=_encode(answers) if answers else b"",
            capabilities=_encode(capabilities),
            modern=modern,
        )
        try:
            value = await perform(
                self._served.dispatcher,
                passed.route,
                asked,
                client_requests,
                completed(request.origin, meta.traceparent, meta.key),
                tasks=wanted_by(meta.task, {}, modern=False) if passed.method == TOOLS_CALL else Wanted.RESULT,
                written=True,
            )
        except InputRequired as required:
            members = {"inputRequests": required.inputs, "requestState": _STATE + required.state}
            encoded = {name: Raw(_encode(member)) for name, member in members.items()}
            return self._result(request, {"resultType": Raw(b'"input_required"'), **encoded})
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this call's answer, and is logged
            return self._failed(request, passed, error)
        if isinstance(value, TaskHandle):
            return self._result(request, {name: Raw(_encode(member)) for name, member in handle_result(value).items()})
        await self._subscribed(request, passed)
        return await self._replied(request, passed, asked, value)

    async def _subscribed(self, request: Request, passed: _Passed) -> None:
        if passed.method not in _SUBSCRIBES:
            return
        # Under the name that the client used, by which it is notified.
        uri, state = _text(_params(request.envelope), "uri"), request.session.state
        (state.subscribe if passed.method == "resources/subscribe" else state.unsubscribe)(uri)
        await request.session.changed()

    def _failed(self, request: Request, passed: _Passed, error: Exception) -> Answer:
        failure = as_failure(error, passed.route.name)
        if passed.method != TOOLS_CALL:
            refused = as_error(failure)
            return Answer(error_message(request.id, refused.code, refused.message, refused.data), refused.code)
        result = as_tool_result(failure)
        return self._result(request, {name: Raw(_encode(value)) for name, value in result.items()})

    async def _replied(self, request: Request, passed: _Passed, asked: MountRequest, value: object) -> Answer:
        if not isinstance(value, Raw):
            value = Raw(_encode(value))
        size = memoryview(value).nbytes
        reply = msgspec.json.decode(value, type=MountReply)
        await turn(size)
        if not isinstance(reply.error, UnsetType):
            try:
                code = msgspec.json.decode(reply.error, type=_Error).code
            except msgspec.DecodeError:
                code = INTERNAL_ERROR
            return Answer(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (_encode(request.id), bytes(reply.error)), code)
        if isinstance(reply.result, UnsetType):
            return self._failed(request, passed, OperationError(f"{passed.route.service} sent no result"))
        if passed.tool is not None and self._bounds:
            decoded = msgspec.json.decode(reply.result)
            await turn(size)
            short = bounded(passed.tool, asked, decoded, None)
            return self._result(request, {name: Raw(_encode(member)) for name, member in short.items()})
        members = msgspec.json.decode(reply.result, type=dict[str, Raw])
        await turn(size)
        return self._result(request, members, reply.result)

    @property
    def _bounds(self) -> bool:
        return self._served.surface.name in BOUNDED

    def _result(self, request: Request, members: dict[str, Raw], whole: Raw | None = None) -> Answer:
        """Return a result with what the client's revision requires; `whole` is its JSON, if it is unchanged so far."""
        if request.session.modern:
            meta = msgspec.json.decode(members.get("_meta", _NULL), type=dict[str, Raw] | None) or {}
            stamp = self._served.surface.server_info or self._served.info
            meta.setdefault(SERVER_INFO, Raw(_encode(stamp)))
            members = {"resultType": Raw(b'"complete"'), **members, "_meta": Raw(_encode(meta))}
            if request.method == "resources/read":
                members = {"ttlMs": Raw(b"0"), "cacheScope": Raw(b'"private"'), **members}
            whole = None
        elif "resultType" in members:
            members = {name: member for name, member in members.items() if name != "resultType"}
            whole = None
        # Long results are copied only once.
        body = _encode(members) if whole is None else memoryview(whole)
        return Answer(b"".join((b'{"jsonrpc":"2.0","id":', _encode(request.id), b',"result":', body, b"}")))


BOUNDED = frozenset({"core", "compact"})
"""Surfaces on which long results are shortened."""


class SessionClient(CallClient):
    """The client end of a request that is passed on; a client with a handshake is asked in its session."""

    def __init__(self, request: Request, capabilities: Mapping[str, Any], *, modern: bool) -> None:
        super().__init__(request.channel.send, capabilities, modern=modern)
        self._request = request

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        if not self._request.session.reachable:
            raise OperationError(f"the client cannot be asked {method}: it has no session")
        response = await self._request.session.ask(method, params, self._request.channel)
        if isinstance(response.result, UnsetType):
            error = b"" if isinstance(response.error, UnsetType) else bytes(response.error)
            raise OperationError(f"the client did not answer {method}: {_message(error)}")
        result: JsonObject = msgspec.json.decode(response.result)
        return result


class _Error(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = ""


def _message(error: bytes) -> str:
    try:
        return msgspec.json.decode(error, type=_Error).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "malformed error"


def _with_own_name(method: str, params: dict[str, Raw], prompts: Mapping[str, str]) -> dict[str, Raw]:
    """Return the parameters with the server's own name of a prompt, whose name has hidden characters."""
    if method == "prompts/get" and (own := prompts.get(_text(params, "name"))) is not None:
        return {**params, "name": _json(own)}
    if method == "completion/complete" and "ref" in params:
        ref = msgspec.json.decode(params["ref"])
        if isinstance(ref, dict) and ref.get("type") == "ref/prompt" and ref.get("name") in prompts:
            return {**params, "ref": _json({**ref, "name": prompts[ref["name"]]})}
    return params


def _json(value: object) -> Raw:
    return Raw(_encode(value))


def _params(envelope: Envelope) -> dict[str, Raw]:
    """Return the parameters, each as its JSON. Raises InvalidParams."""
    if isinstance(envelope.params, UnsetType) or bytes(envelope.params) == b"null":
        return {}
    try:
        return msgspec.json.decode(envelope.params, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"params: {error}", field="params") from None


def _meta(params: Mapping[str, Raw]) -> _Meta:
    if "_meta" not in params:
        return _Meta()
    try:
        return msgspec.json.decode(params["_meta"], type=_Meta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"params._meta: {error}", field="_meta") from None


def _is_usual(meta: Raw) -> bool:
    decoded: object = msgspec.json.decode(meta)
    return isinstance(decoded, dict) and is_usual_envelope(decoded)


def _without_connection(params: dict[str, Raw]) -> dict[str, Raw]:
    """Return the parameters without the members of `_meta` that belong to the client's own connection."""
    if "_meta" not in params:
        return params
    meta = msgspec.json.decode(params["_meta"], type=dict[str, Raw])
    kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(OWN)}
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return {**rest, "_meta": _json(kept)} if kept else rest


def _text(params: Mapping[str, Raw], name: str) -> str:
    """Return a parameter that is text; "" if it is absent or something else."""
    try:
        return msgspec.json.decode(params.get(name, Raw(b'""')), type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
