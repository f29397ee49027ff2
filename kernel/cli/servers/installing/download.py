"""Downloads from registries: limited in time and size, and with errors that say what to do next."""

from __future__ import annotations

import ipaddress
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPMessage
from typing import IO, Final

from kernel import VERSION
from proto.control.commands import Failed, Usage
from proto.control.terminal import size

ANSWER_S: Final = 15.0
"""Time for an answer in all, from the look-up of the host's name to the last byte."""

ANSWER_BYTES: Final = 8 * 1024 * 1024

SILENCE_S: Final = 10.0
_PIECE = 64 * 1024


class NotThere(Exception):
    """The server has no such thing (404)."""


def check_address(url: str, what: str) -> str:
    """Return an address without a `/` at its end. Raises Usage if it is none, or if anybody on the way could change
    what comes from there."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urllib.parse.SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not host or any(c <= " " or c == "\x7f" for c in url):
        raise Usage(f"{what}: expected an address such as https://registry.example.org")
    if parts.scheme == "http" and not _is_private(host):
        raise Usage(f"{what}: http:// is possible only for this machine and private networks; write https://")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise Usage(f"{what}: the address must have no user, ? or #")
    return url.rstrip("/")


def _is_private(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return host == "localhost" or "." not in host


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to anything else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        kinds = ("https",) if req.type == "https" else ("https", "http")
        if urllib.parse.urlsplit(newurl).scheme not in kinds:
            raise urllib.error.URLError(f"it redirects to {urllib.parse.urlsplit(newurl).scheme}://, which is not safe")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def downloaded(
    url: str, *, limit_bytes: int = ANSWER_BYTES, limit_s: float = 0.0, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return what is at an address. `limit_s` is `ANSWER_S` by default. Raises Failed, NotThere."""
    limit_s = limit_s or ANSWER_S
    found: list[bytes | Exception] = []

    def get() -> None:
        try:
            found.append(_got(url, limit_bytes, headers or {}))
        except Exception as error:  # noqa: BLE001  # It is raised in the main thread.
            # Its frames keep the connection open.
            found.append(error.with_traceback(None))

    # Neither the look-up of a name nor a server that sends a byte a second can be limited otherwise.
    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    thread.join(limit_s)
    host = urllib.parse.urlsplit(url).netloc
    if not found:
        raise Failed(f"{host} did not answer completely within {limit_s:g} s; nothing was changed")
    (result,) = found
    if isinstance(result, bytes):
        return result
    if isinstance(result, NotThere | Failed):
        raise result
    raise Failed(f"{host} cannot be reached: {_why(result)}; nothing was changed") from None


def _got(url: str, limit_bytes: int, headers: Mapping[str, str]) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": f"linckia/{VERSION}", **headers})
    host = urllib.parse.urlsplit(url).netloc
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=SILENCE_S) as response:
            content = bytearray()
            while piece := response.read1(_PIECE):
                content += piece
                if len(content) > limit_bytes:
                    raise Failed(f"{host} sent more than {size(limit_bytes)}; nothing was changed")
            expected = response.headers.get("Content-Length", "")
            if expected.isdecimal() and len(content) < int(expected):
                raise Failed(f"{host} sent only a part of its answer; nothing was changed")
            return bytes(content)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise NotThere from None
            hint = "; try again later" if error.code in (429, 500, 502, 503, 504) else ""
            hint = "; it wants a login, which is not supported" if error.code in (401, 403) else hint
            raise Failed(f"{host} refused: HTTP status {error.code}{hint}; nothing was changed") from None


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return "no answer in time" if isinstance(reason, TimeoutError) else " ".join(text.split())[:200]
