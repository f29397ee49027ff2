"""The kernel on another machine, for `linckia sync`: its operations over HTTP, with limits on time and size.

Nothing that it answers is trusted: answers are bounded, redirects are not followed, and each request has a deadline.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2
import trio

from proto.control.commands import Failed, Usage

ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer that is read; the longest request of other clients is as long."""

PATIENCE_S = 60.0
"""How long a kernel that was reached before may be away, while it or its service restarts."""

PAUSE_S = 0.5
MAX_SAID = 300

MAKE_TOKEN = "make one there with `linckia token create NAME --sync`"

HAS_TOO_MUCH = re.compile("the (body|request) has .*, more than ")
"""How a kernel refuses JSON with more values than one request may have."""


class TooLarge(Exception):
    """A kernel takes no request of this size."""


class Peer:
    """The other kernel. Raises Failed, TooLarge."""

    def __init__(self, url: str, token: str, timeout_s: float, *, plain: bool) -> None:
        """Raises Usage: the address is wrong, or not encrypted although it leaves this machine, unless `plain`."""
        self.url = _checked(url, plain=plain)
        self._timeout_s = timeout_s
        self._was_reached = False
        # No proxy and no credentials from the environment.
        self._client = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {token}", "accept-encoding": "identity"}, timeout=timeout_s,
            trust_env=False, follow_redirects=False, verify=ssl.create_default_context(),
        )  # fmt: skip

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def call(self, name: str, params: Mapping[str, object]) -> Any:
        """Call an operation that may be repeated, and return its result."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            pause_s = PAUSE_S
            try:
                with trio.fail_after(self._timeout_s):
                    status, body, pause_s = await self._post(name, params)
            except trio.TooSlowError:
                raise Failed(
                    f"{self.url} did not answer {name} within {self._timeout_s:.0f} s (--timeout); nothing is lost, "
                    "and the same command goes on"
                ) from None
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                cause = _cause(error)
                problem = f"{self.url} cannot be reached: {str(cause) or type(cause).__name__}"
                if not self._was_reached or isinstance(cause, ssl.SSLError):
                    raise Failed(problem) from None
            else:
                self._was_reached = True
                if status == 200:
                    return _decoded(self.url, name, body)
                problem = self._problem(name, status, body)
                if pause_s < 0:
                    raise Failed(problem)
            if time.monotonic() + pause_s > give_up_at:
                raise Failed(f"{problem}; the same command goes on once it answers again")
            await trio.sleep(pause_s)

    async def _post(self, name: str, params: Mapping[str, object]) -> tuple[int, bytes, float]:
        """Return the status and the body of an answer, and after which time to repeat the request (negative: never)."""
        async with self._client.stream("POST", f"{self.url}/call/{name}", json=dict(params)) as answer:
            body = bytearray()
            with trio.CancelScope() as reading:
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > ANSWER_BYTES:
                        # An exception here would leave generators of the HTTP client unfinished.
                        reading.cancel()
            if reading.cancelled_caught:
                raise Failed(f"{self.url} answered {name} with more than {ANSWER_BYTES} bytes")
            status = answer.status_code
            if status == 413 or (status == 400 and HAS_TOO_MUCH.match(_said(bytes(body)))):
                raise TooLarge
            passing = status in (429, 502, 504) or (status == 503 and "retry-after" in answer.headers)
            return status, bytes(body), _pause(answer.headers.get("retry-after-ms", "")) if passing else -1.0

    def _problem(self, name: str, status: int, body: bytes) -> str:
        if status == 401:
            return f"{self.url} does not know this token: {MAKE_TOKEN}"
        if status == 403:
            return f"the token is not for `linckia sync`: {MAKE_TOKEN} ({self.url}: {_said(body)})"
        if status == 404:
            return (
                f"{self.url} has no {name}: it is no Linckia, or a version without `linckia sync`; update it"
                f" ({_said(body)})"
            )
        if 300 <= status < 400:
            return f"{self.url} redirects to another address, which is not followed; give the final address"
        return f"{self.url} refused {name} (HTTP {status}): {_said(body)}"


def _checked(url: str, *, plain: bool) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise Usage(f"{url!r} is not the address of a kernel; write https://HOST or http://127.0.0.1:3000")
    if parts.scheme == "http" and not plain and not _is_loopback(host):
        raise Usage(
            f"{url}: others on the way could read the token and everything else; use https, a tunnel to a port of this "
            "machine, or --plain-http if the network itself is encrypted"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/mcp')}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cause(error: BaseException) -> BaseException:
    """Return the error of TLS or of the system behind one of the HTTP client, or itself."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found
        found = found.__cause__ or found.__context__
    return error


def _pause(given: str) -> float:
    return max(PAUSE_S, min(10.0, int(given) / 1000)) if given.isdecimal() and len(given) < 7 else PAUSE_S


def _decoded(url: str, name: str, body: bytes) -> Any:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failed(f"{url} answered {name} with something that is no JSON object")
    return found


def _said(body: bytes) -> str:
    try:
        said = json.loads(body)["error"]
    except (ValueError, RecursionError, KeyError, TypeError):
        said = body.decode(errors="replace")
    text = said.get("message", said) if isinstance(said, dict) else said
    return " ".join(str(text).split())[:MAX_SAID] or "no message"
