"""The issuer's keys, read over real HTTP: which metadata is accepted, and which links are never followed."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from proto.errors import Forbidden, OperationError, Unavailable
from services.fetch.issuer import MAX_BYTES, Issuer, is_trustworthy, metadata_urls
from tests.unit.fetch.rig import Request, serving

KEY = {"kty": "EC", "kid": "1"}


def issuer_of(port: int, jwks_url: str = "", path: str = "") -> Issuer:
    return Issuer(f"http://127.0.0.1:{port}{path}", jwks_url, (), "test")


async def read(pages: dict[str, Any], **more: str) -> tuple[Any, list[str]]:
    """Return the keys, or the error, and the requests made.  `PORT` in a page is the site's."""

    async def answer(request: Request) -> None:
        page = pages.get(request.target)
        if page is None:
            await request.answer("404 Not Found")
        elif isinstance(page, tuple):
            await request.answer(page[0], b"", **page[1])
        else:
            text = page if isinstance(page, str) else json.dumps(page)
            await request.answer("200 OK", text.replace("PORT", str(served.port)).encode())

    async with serving(answer) as served:
        outcome: Any
        try:
            outcome = (await issuer_of(served.port, **more).keys()).keys
        except (OperationError, Forbidden, Unavailable) as error:
            outcome = error
        return outcome, [request.target for request in served.asked]


RFC8414, OIDC = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
METADATA = {"issuer": "http://127.0.0.1:PORT", "jwks_uri": "http://127.0.0.1:PORT/keys", "more": 1}


@pytest.mark.parametrize(("place", "asked"), [(RFC8414, [RFC8414, "/keys"]), (OIDC, [RFC8414, OIDC, "/keys"])])
async def test_the_keys_are_read_from_the_address_in_the_metadata(place: str, asked: list[str]) -> None:
    assert await read({place: METADATA, "/keys": {"keys": [KEY]}}) == ([KEY], asked)


def test_the_metadata_is_looked_for_where_the_standards_put_it() -> None:
    assert metadata_urls("https://h.example/a/b/") == [
        "https://h.example/.well-known/oauth-authorization-server/a/b",
        "https://h.example/a/b/.well-known/openid-configuration",
    ]


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ({RFC8414: {**METADATA, "issuer": "https://other.example"}}, "belongs to the issuer 'https://other.example'"),
        ({RFC8414: {**METADATA, "jwks_uri": "file:///etc/passwd"}}, "must be http or https"),
        ({RFC8414: {**METADATA, "jwks_uri": "http://keys.example/"}}, "https is required"),
        ({RFC8414: {**METADATA, "jwks_uri": "https://127.0.0.2:PORT/keys"}}, "not on the public Internet"),
        ({RFC8414: {**METADATA, "jwks_uri": 7}}, "Expected `str`"),
        ({RFC8414: "[" * 100_000}, "no metadata"),
        ({RFC8414: METADATA, "/keys": "no JSON"}, "/keys"),
        ({RFC8414: METADATA, "/keys": {"keys": 7}}, "Expected `array`"),
        ({RFC8414: METADATA, "/keys": {"keys": [KEY] * 101}}, "length <= 100"),
        ({RFC8414: METADATA, "/keys": " " * (MAX_BYTES + 1)}, "longer than"),
        ({RFC8414: METADATA, "/keys": ("302 Found", {"location": "/elsewhere"})}, "redirects more than 0 times"),
        ({RFC8414: METADATA, "/keys": ("200 OK", {"content_encoding": "gzip"})}, "the server returned 200"),
        ({}, "no metadata found"),
    ],
)
async def test_invalid_metadata_is_reported_and_nothing_else_is_requested(pages: dict[str, Any], why: str) -> None:
    outcome, asked = await read(pages)
    assert isinstance(outcome, Exception)
    assert why in str(outcome)
    assert set(asked) <= {RFC8414, OIDC, "/keys"}


def test_plain_http_is_for_this_machine_alone() -> None:
    assert [is_trustworthy(httpx2.URL(url)) for url in ("https://h.example", "http://[::1]:8", "http://h.example")] == [
        True, True, False
    ]  # fmt: skip
