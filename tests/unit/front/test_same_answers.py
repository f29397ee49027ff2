"""Every message is answered as the SDK's own transports answer it, over stdio and HTTP, in every revision.

Calls of tools in all their forms are in `test_fast_path`, and messages sent while the SDK loads in `test_handshake`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import ASGIApp

from tests.unit.front.sdk_transports import (
    Receive,
    Response,
    Send,
    ask,
    http_of_ours,
    http_of_the_sdk,
    stdio_of_ours,
    stdio_of_the_sdk,
)
from tests.unit.front.wire import META, MODERN

CLIENT = {"name": "test", "version": "1"}

VERSIONS = [*HANDSHAKE_PROTOCOL_VERSIONS, MODERN]


def opening(version: object = "2025-11-25", **more: object) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT, **more}


OPENINGS: list[Any] = [
    *(opening(version) for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN, "x", 5)),
    opening(capabilities={"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}}),
    opening(capabilities=5),
    opening(capabilities={"roots": 5}),
    opening(unknown=1),
    opening(clientInfo={"name": "only"}),
    opening(clientInfo={**CLIENT, "icons": [{"src": "https://127.0.0.1/i.png"}]}),
    opening(_meta={"progressToken": 1}),
    {},
    None,
]

URI = "t://page/1"

PROMPT = {"type": "ref/prompt", "name": "none"}
TEMPLATE = {"type": "ref/resource", "uri": "t://page/{number}"}

LISTS: list[Any] = [None, {}, {"cursor": "2"}, {"cursor": 2}, {"unknown": 1}, {"_meta": {}}]

REQUESTS: list[tuple[str, Any]] = [
    *(("ping", params) for params in [*LISTS, {"_meta": {"progressToken": 1}}]),
    *((f"{what}/list", p) for what in ("tools", "resources", "resources/templates", "prompts") for p in LISTS),
    ("tools/call", {"name": "t_string", "arguments": {}}),
    ("tools/call", {"name": "t_pair", "arguments": {"text": 5}}),
    ("tools/call", {"name": "t_asks", "arguments": {}}),
    ("tools/call", {"name": "no"}),
    ("tools/call", {"name": 5}),
    ("tools/call", {"name": "t_progress", "arguments": {"steps": 1}, "_meta": {"progressToken": "p"}}),
    ("tools/call", {"name": "t_progress", "arguments": {"steps": 1}, "unknown": 10**30}),
    ("tools/call", None),
    *(("resources/read", {"uri": uri}) for uri in (URI, "t://page/x", "t://list?offset=5", "no://thing", 5)),
    ("resources/read", {}),
    *((f"resources/{what}", {"uri": uri}) for what in ("subscribe", "unsubscribe") for uri in (URI, "no", 5)),
    ("prompts/get", {"name": "none"}),
    ("prompts/get", {"name": "none", "arguments": {"a": 5}}),
    ("prompts/get", {}),
    *(
        ("completion/complete", {"ref": ref, "argument": argument})
        for ref in (PROMPT, TEMPLATE, {"type": "ref/other"}, 5)
        for argument in ({"name": "number", "value": ""}, {"name": "no", "value": ""}, {"name": 5})
    ),
    *(("logging/setLevel", {"level": level}) for level in ("error", "info", "loud", 5, None)),
    ("logging/setLevel", None),
    ("server/discover", None),
    ("sampling/createMessage", {}),
    ("notifications/initialized", None),
    ("tasks/list", None),
    ("no/such", {"a": 1}),
    ("", None),
]

NOTIFICATIONS: list[tuple[str, Any]] = [
    ("notifications/initialized", None),
    ("notifications/initialized", {"unknown": 1}),
    *(("notifications/cancelled", params) for params in (None, {"requestId": 77}, {"requestId": None})),
    ("notifications/progress", {"progressToken": 1, "progress": 1}),
    ("notifications/roots/list_changed", None),
    ("no/such", None),
]


def message(method: str | None, params: Any = None, id: object = None, **more: object) -> bytes:
    made: dict[str, Any] = {"jsonrpc": "2.0", **more}
    made |= {} if method is None else {"method": method}
    made |= {} if params is None else {"params": params}
    return json.dumps(made if id is None else {**made, "id": id}).encode()


def enveloped(params: Any, **meta: Any) -> Any:
    """The parameters of a request of 2026-07-28."""
    own = params.get("_meta") if isinstance(params, dict) else {}
    return {**(params or {}), "_meta": {**META, **(own or {}), **meta}}


def comparable(answer: Any) -> Any:
    """Return a message without its sealed parts, which differ each time, and without absent details."""
    if isinstance(answer.get("error"), dict) and answer["error"].get("data") is None:
        answer["error"].pop("data", None)
    if isinstance(answer.get("result"), dict):
        answer["result"].pop("requestState", None)
    return answer


# ---- stdio ----------------------------------------------------------------------------------------------------------


def is_request(data: bytes) -> bool:
    return b'"id"' in data and b'"method"' in data


async def answers(send: Send, receive: Receive, requests: list[bytes]) -> list[Any]:
    found = []
    for request in requests:
        await send(request + b"\n")
        if not is_request(request):
            continue
        found.append([comparable(await receive())])
        while "id" not in found[-1][-1]:
            found[-1].append(comparable(await receive()))
    return found


async def compare_stdio(requests: list[bytes]) -> None:
    async with stdio_of_ours() as (send, receive):
        ours = await answers(send, receive, requests)
    async with stdio_of_the_sdk() as (send, receive):
        theirs = await answers(send, receive, requests)
    for request, one, other in zip(filter(is_request, requests), ours, theirs, strict=True):
        assert one == other, request


@pytest.mark.parametrize("version", VERSIONS)
async def test_stdio_answers_every_request_as_the_sdk_does(version: str) -> None:
    if version == MODERN:
        first = [message("server/discover", enveloped(None), 0)]
        requests = [message(method, enveloped(params), 7) for method, params in REQUESTS]
        # Without its envelope, or with half of one, or one of the other era.
        requests += [message(method, params, 7) for method, params in REQUESTS[:6]]
        requests += [message("tools/list", {"_meta": {key: META[key]}}, 7) for key in META]
        requests += [message("tools/list", enveloped(None, **{key: 5}), 7) for key in META]
        requests += [message("initialize", params, 7) for params in OPENINGS]
    else:
        first = [message("initialize", opening(version), 0), message("notifications/initialized")]
        requests = [message(method, params, 7) for method, params in REQUESTS]
        requests += [message("tools/list", enveloped(None), 7), message("initialize", opening(version), 7)]
    noted = [message(method, params) for method, params in NOTIFICATIONS]
    responses = [message(None, id=5, result={}), message(None, id=5, error={"code": 1, "message": "no"})]
    await compare_stdio([*first, *requests, *noted, *responses, message("tools/list", enveloped(None), 8)])


@pytest.mark.parametrize("params", OPENINGS)
async def test_stdio_opens_as_the_sdk_does(params: Any) -> None:
    """What follows shows whether the session was opened."""
    after = [message("resources/list", None, 2), message("tools/call", {"name": "t_string"}, 3)]
    await compare_stdio([message("initialize", params, 1), *after])


@pytest.mark.parametrize(
    "first",
    [
        [message("ping", None, 1)],
        [message("tools/list", None, 1)],
        [message("no/such", None, 1)],
        [message("notifications/initialized")],
        [message("tools/list", enveloped(None), 1)],
        [message("tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}}, 1)],
        [message("initialize", enveloped(opening()), 1)],
        [message("ping", None, 1), message("initialize", opening(), 2)],
        [message("initialize", opening("2024-11-05"), 1), message("initialize", opening("2025-06-18"), "1")],
    ],
)
async def test_the_first_request_decides_the_era_as_with_the_sdk(first: list[bytes]) -> None:
    legacy, modern = message("resources/list", None, 8), message("resources/list", enveloped(None), 9)
    await compare_stdio([*first, legacy, modern, message("initialize", opening(), 10), legacy])


# ---- HTTP -----------------------------------------------------------------------------------------------------------

JSON_AND_EVENTS = "application/json, text/event-stream"


def headers_of(version: str, body: bytes, session: dict[str, str], **changed: str | None) -> list[tuple[str, str]]:
    headers: dict[str, str | None] = {"content-type": "application/json", "accept": JSON_AND_EVENTS, **session}
    if version == MODERN:
        made = json.loads(body)
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": made.get("method", "")}
        params = made.get("params") or {}
        name = params.get("name", params.get("uri"))
        headers["mcp-name"] = name if isinstance(name, str) else None
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    return [(name, value) for name, value in headers.items() if value is not None]


async def opened(app: ASGIApp, version: str) -> dict[str, str]:
    body = message("initialize", opening(version), 0)
    reply = await ask(app, "POST", headers_of(version, body, {}), body)
    session = {"mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": version}
    await ask(app, "POST", headers_of(version, b"{}", session), message("notifications/initialized"))
    return session


def seen(reply: Response, *, own_words: bool = False) -> Any:
    """Return the parts of a response to compare.

    Args:
        own_words: whether to compare only the status, because our error text is better.
    """
    if own_words:
        return reply.status
    return reply.status, reply.headers.get("allow"), [comparable(each) for each in reply.messages]


async def compare_http(
    version: str, exchanges: list[tuple[str, bytes, dict[str, str | None]]], *, stateless: bool = False
) -> None:
    """Compare the answers to requests with these methods, bodies, and changes to their headers."""
    found: list[list[Any]] = []
    for side in (http_of_ours, http_of_the_sdk):
        async with side(stateless=stateless) as app:
            session = {} if stateless or version == MODERN else await opened(app, version)
            replies = [
                await ask(app, method, headers_of(version, body or b"{}", session, **changed), body)
                for method, body, changed in exchanges
            ]
            found.append(replies)
    for exchange, ours, theirs in zip(exchanges, *found, strict=True):
        bare = theirs.status >= 400 and not theirs.messages
        assert seen(ours, own_words=bare) == seen(theirs, own_words=bare), exchange


def posts(version: str) -> list[bytes]:
    if version != MODERN:
        requests = [message(method, params, 7) for method, params in REQUESTS]
        return [*requests, *(message(method, params) for method, params in NOTIFICATIONS)]
    requests = [message(method, enveloped(params), 7) for method, params in [*REQUESTS, ("initialize", opening())]]
    requests += [message(method, params, 7) for method, params in REQUESTS[:6]]
    requests += [message("tools/list", enveloped(None, **{key: 5}), 7) for key in META]
    listening = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": [URI]}}
    requests.append(message("subscriptions/listen", enveloped(listening), 7))
    return [*requests, *(message(method, params) for method, params in NOTIFICATIONS)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_http_answers_every_request_as_the_sdk_does(version: str) -> None:
    await compare_http(version, [("POST", body, {}) for body in posts(version)])


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
async def test_http_without_sessions_answers_as_the_sdk_does(version: str) -> None:
    changed: dict[str, str | None] = {"mcp_protocol_version": version}
    bodies = [*posts(version), *(message("initialize", params, 7) for params in OPENINGS)]
    await compare_http(version, [("POST", body, changed) for body in bodies], stateless=True)


@pytest.mark.parametrize("params", OPENINGS)
async def test_http_opens_as_the_sdk_does(params: Any) -> None:
    found = []
    for side in (http_of_ours, http_of_the_sdk):
        async with side() as app:
            body = message("initialize", params, 7)
            reply = await ask(app, "POST", headers_of("", body, {}), body)
            session = {"mcp-session-id": reply.headers.get("mcp-session-id", "none")}
            listing = message("resources/list", None, 8)
            found.append((seen(reply), seen(await ask(app, "POST", headers_of("", listing, session), listing))))
    if "error" in found[1][0][2][0]:
        # A session that was not opened: the SDK keeps it, so that each request to it is refused on its own.
        assert found[0][0] == found[1][0]
        assert found[0][1][0] == 404
    else:
        assert found[0] == found[1]


LISTING = {version: message("tools/list", enveloped(None) if version == MODERN else None, 7) for version in VERSIONS}
CALLING = {
    version: message("tools/call", {"name": "t_string", **({"_meta": META} if version == MODERN else {})}, 7)
    for version in VERSIONS
}

HEADERS: list[dict[str, str | None]] = [
    *(
        {"accept": accept}
        for accept in (
            None, "", "*/*", "application/json", "text/event-stream", "text/html", "application/*, text/*", "text/*",
            "APPLICATION/JSON, Text/Event-Stream", "application/json;q=1, text/event-stream;q=0.5",
        )
    ),
    *(
        {"content_type": content_type}
        for content_type in (
            None, "", "text/plain", "application/json; charset=utf-8", "APPLICATION/JSON", "application/jsonl",
            "application/json, text/plain", "text/plain, application/json",
        )
    ),
    {"mcp_protocol_version": "2030-01-01"},
    {"mcp_protocol_version": ""},
    {"mcp_method": "tools/other"},
    {"mcp_method": None},
    {"mcp_name": "t_list"},
    {"mcp_name": None},
    {"mcp_name": "=?base64?dF9zdHJpbmc=?="},
    {"mcp_name": "=?base64?!?="},
    {"mcp_param_colour": "red"},
    {"mcp_session_id": None},
    {"mcp_session_id": "unknown"},
    {"last_event_id": None},
]  # fmt: skip


@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_http_judges_headers_as_the_sdk_does(version: str) -> None:
    exchanges = [
        (method, body, changed)
        for changed in HEADERS
        for method, body in (
            ("POST", LISTING[version]),
            ("POST", CALLING[version]),
            ("POST", message("notifications/cancelled", {"requestId": 1})),
            ("GET", b""),
        )
    ]
    exchanges += [(method, b"", {}) for method in ("PUT", "PATCH", "HEAD", "DELETE")]
    await compare_http(version, exchanges)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"5",
        b"[]",
        b"{}",
        b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":5}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":5}',
        b'{"jsonrpc":"2.0","id":1,"result":5}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":5}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}',
        b'{"jsonrpc":"2.0","method":"ping","params":5}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"\xff":1}}',
    ],
)
@pytest.mark.parametrize("version", ["2025-11-25", MODERN])
async def test_http_refuses_invalid_messages_as_the_sdk_does(version: str, body: bytes) -> None:
    """Our own error text names the request if possible.

    A request whose id is neither a string nor an integer is refused by us alone: see `tests/hostile`.
    """
    found = []
    for side in (http_of_ours, http_of_the_sdk):
        async with side() as app:
            session = {} if version == MODERN else await opened(app, version)
            headers = headers_of(version, b"{}", session)
            found.append((await ask(app, "POST", headers, body)).status)
    assert found[0] == found[1]
