"""Tokens of an issuer: which are accepted, and that every kind of forged token is refused."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from typing import Any

import jwt
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proto.errors import Unavailable
from proto.grants import Grant, issuer_id
from proto.wire.front import OAuth, ScopeGrant
from services.front.transport.oauth import (
    MAX_TOKEN_CHARS,
    Bearer,
    InsufficientScope,
    InvalidToken,
    KeysUnavailable,
    ResourceServer,
    resource_path,
)
from tests.issuer import AUDIENCE, Issuer

SCOPES = {
    "notes": ScopeGrant(surfaces=("knowledge",), read_only=True),
    "files": ScopeGrant(surfaces=("files",), roots=("/a",)),
}


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    made = Issuer()
    made.add("ec")
    made.add("rsa", "RS256")
    made.add("ed", "EdDSA")
    return made


class Reader:
    """Returns the issuer's keys, and counts the calls."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.reads = 0
        self.down = False

    async def __call__(self) -> list[dict[str, Any]]:
        self.reads += 1
        if self.down:
            raise Unavailable("nothing answers")
        return self.issuer.jwks()


def server(issuer: Issuer, reader: Reader | None = None, **more: Any) -> ResourceServer:
    told = OAuth(issuer=issuer.url, audience=AUDIENCE, scopes=SCOPES, **more)
    return ResourceServer(told, reader or Reader(issuer))


async def refused(issuer: Issuer, token: str, why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        await server(issuer).bearer(token)


def grant_of(subject: str, surfaces: tuple[str, ...], roots: tuple[str, ...] = (), read_only: bool = False) -> Grant:
    return Grant(f"oauth:{subject}", surfaces, roots, read_only, issuer_id("https://issuer.example", subject))


def test_a_subject_of_another_issuer_is_another_client() -> None:
    assert len({issuer_id("a", "ann"), issuer_id("a", "ben"), issuer_id("b", "ann")}) == 3


@pytest.mark.parametrize("kid", ["ec", "rsa", "ed"])
async def test_a_token_of_the_issuer_has_the_rights_of_its_scope_in_the_settings(issuer: Issuer, kid: str) -> None:
    bearer = await server(issuer).bearer(issuer.token(kid))
    assert bearer.grant == grant_of("ann", ("knowledge",), (), True)
    assert bearer.expires is not None
    assert time.time() + 600 < bearer.expires < time.time() + 640


@pytest.mark.parametrize(
    ("claims", "grant"),
    [
        ({"scope": "other files"}, grant_of("ann", ("files",), ("/a",))),
        ({"scope": "files notes"}, grant_of("ann", ("knowledge",), (), True)),
        ({"scope": None, "scp": ["files"]}, grant_of("ann", ("files",), ("/a",))),
        ({"sub": None, "client_id": "robot", "aud": ["x", AUDIENCE]}, grant_of("robot", ("knowledge",), (), True)),
    ],
)
async def test_among_several_scopes_the_first_in_the_settings_counts(
    issuer: Issuer, claims: dict[str, Any], grant: Grant
) -> None:
    assert (await server(issuer).bearer(issuer.token("ec", **claims))).grant == grant


@pytest.mark.parametrize("scope", [None, "", "other", 7, ["notes "], {"notes": True}])
async def test_a_token_without_a_configured_scope_is_refused_with_the_reason(issuer: Issuer, scope: object) -> None:
    with pytest.raises(InsufficientScope, match="notes, files"):
        await server(issuer).bearer(issuer.token("ec", scope=scope))


HOUR = 3600


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "https://other.example"}, "for another server"),
        ({"aud": [AUDIENCE + "/"]}, "for another server"),
        ({"aud": None}, "lacks one of the claims"),
        ({"iss": "https://issuer.example/"}, "from another issuer"),
        ({"iss": None}, "lacks one of the claims"),
        ({"exp": time.time() - HOUR}, "has expired"),
        ({"exp": None}, "lacks one of the claims"),
        ({"exp": "soon"}, "not valid"),
        ({"exp": 10**400}, "cannot be read"),
        ({"nbf": time.time() + HOUR}, "not valid yet"),
        ({"iat": time.time() + HOUR}, "not valid yet"),
        ({"sub": None}, "neither subject nor client"),
        ({"sub": 7}, "not valid"),
    ],
)
async def test_a_token_for_another_place_or_time_is_refused(issuer: Issuer, claims: dict[str, Any], why: str) -> None:
    await refused(issuer, issuer.token("ec", **claims), why)


async def test_the_clocks_may_differ_a_little(issuer: Issuer) -> None:
    assert await server(issuer).bearer(issuer.token("ec", exp=time.time() - 10, nbf=time.time() - 20))


def encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def claims_of(issuer: Issuer) -> dict[str, Any]:
    found: dict[str, Any] = jwt.decode(issuer.token("ec"), options={"verify_signature": False})
    return found


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", None, 7, ["ES256"], {"a": 1}])
async def test_an_unsigned_token_is_refused(issuer: Issuer, name: object) -> None:
    for kid in ("ec", None):
        token = f"{encoded({'alg': name, 'kid': kid})}.{encoded(claims_of(issuer))}."
        await refused(issuer, token, "not signed with an algorithm|not a JSON Web Token")


async def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(issuer: Issuer) -> None:
    """The attack on libraries that take the algorithm from the token (CVE-2015-9235)."""
    public = issuer.private["rsa"][1].public_key()
    forms = [
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        json.dumps(issuer.jwks()[1]).encode(),
    ]
    signer = jwt.PyJWS()
    for algorithm in ("HS256", "HS384", "HS512"):
        for secret in forms:
            head = f"{encoded({'alg': algorithm, 'kid': 'rsa'})}.{encoded(claims_of(issuer))}".encode()
            signature = signer._algorithms[algorithm].sign(head, secret)
            token = f"{head.decode()}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
            await refused(issuer, token, "not signed with an algorithm")


async def test_keys_that_a_token_contains_or_links_to_are_ignored(issuer: Issuer) -> None:
    mallory = Issuer(issuer.url)
    mallory.add("ec")
    for header in (
        {"jwk": mallory.jwks()[0]},
        {"jku": "http://127.0.0.1:1/keys", "kid": "ec"},
        {"x5u": "http://127.0.0.1:1/keys"},
        {"x5c": ["MII"]},
    ):
        await refused(issuer, mallory.token("ec", header), "signature is wrong")
    await refused(issuer, mallory.token("ec", {"kid": "../../etc/passwd"}), "no such key")
    await refused(issuer, issuer.token("ec", {"crit": ["exp"], "exp": 1}), "not a JSON Web Token|not valid")


async def test_a_signature_is_valid_only_for_its_token_and_its_key(issuer: Issuer) -> None:
    head, _, signature = issuer.token("ec").split(".")
    changed = encoded({**claims_of(issuer), "scope": "files"})
    await refused(issuer, f"{head}.{changed}.{signature}", "signature is wrong")
    await refused(issuer, issuer.token("ec", {"kid": "rsa"}), "no such key")
    await refused(issuer, issuer.token("rsa", {"kid": "ed"}), "no such key")


async def test_a_token_without_a_key_id_is_checked_with_the_only_key(issuer: Issuer) -> None:
    algorithm, key = issuer.private["ec"]
    token = jwt.encode(claims_of(issuer), key, algorithm)
    assert await server(issuer).bearer(token)
    two = Issuer(issuer.url)
    two.private = {"ec": issuer.private["ec"], "other": issuer.private["ec"]}
    with pytest.raises(InvalidToken, match="no such key"):
        await server(two).bearer(token)


async def test_keys_that_are_not_for_signing_or_too_short_are_not_used() -> None:
    weak = Issuer()
    weak.private["weak"] = ("RS256", rsa.generate_private_key(65537, 1024))
    with pytest.warns(match="minimum"):
        token = weak.token("weak")
    await refused(weak, token, "fewer than 2048 bits")

    class Encrypting(Issuer):
        def jwks(self) -> list[dict[str, Any]]:
            return [{**key, "use": "enc"} for key in super().jwks()]

    encrypting = Encrypting()
    encrypting.add("ec")
    await refused(encrypting, encrypting.token("ec"), "no such key")


async def test_a_token_may_not_be_huge_or_deep(issuer: Issuer) -> None:
    await refused(issuer, issuer.token("ec", padding="x" * MAX_TOKEN_CHARS), "longer than")
    deep = base64.urlsafe_b64encode(b"[" * 2500).rstrip(b"=").decode()
    await refused(issuer, f"{deep}.{deep}.x", "not a JSON Web Token")
    inner = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"ec","a":' + b"[" * 4000).rstrip(b"=").decode()
    await refused(issuer, f"{inner}.{encoded({})}.x", "not a JSON Web Token")


@given(st.text(max_size=100), st.text(max_size=100), st.binary(max_size=100))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_are_only_an_invalid_token(issuer: Issuer, head: str, body: str, signature: bytes) -> None:
    async def judge() -> None:
        for first in (head, encoded(head), encoded({"alg": "ES256", "kid": head}), encoded({"alg": head})):
            token = f"{first}.{encoded(body)}.{base64.urlsafe_b64encode(signature).decode()}"
            with pytest.raises(InvalidToken):
                await server(issuer).bearer(token)

    trio.run(judge)


async def test_new_keys_are_read_when_they_are_used_and_once_a_minute_at_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    own = Issuer()
    own.add("old")
    reader = Reader(own)
    judging = server(own, reader)
    assert await judging.bearer(own.token("old"))
    assert await judging.bearer(own.token("old"))
    assert reader.reads == 1
    own.add("new")
    await trio.sleep(61)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(judging.bearer, own.token("new"))
    assert reader.reads == 2
    for number in range(500):
        with pytest.raises(InvalidToken):
            await judging.bearer(own.token("new", {"kid": f"unknown-{number}"}))
    assert reader.reads == 2
    # A key that the issuer took back is forgotten within an hour.
    own.private.pop("old")
    token = own.token("new")
    await trio.sleep(3601)
    assert await judging.bearer(token)
    reader_before = reader.reads
    own.private["old"] = own.private["new"]
    assert reader_before == 3


async def test_keys_that_are_known_are_used_while_the_issuer_is_away(autojump_clock: trio.testing.MockClock) -> None:
    own = Issuer()
    own.add("ec")
    reader = Reader(own)
    judging = server(own, reader)
    reader.down = True
    with pytest.raises(KeysUnavailable, match="nothing answers"):
        await judging.bearer(own.token("ec"))
    reader.down = False
    await trio.sleep(2)
    assert isinstance(await judging.bearer(own.token("ec")), Bearer)
    reader.down = True
    await trio.sleep(7200)
    assert isinstance(await judging.bearer(own.token("ec")), Bearer)


async def test_a_session_belongs_to_a_subject_with_its_rights_and_not_to_one_token(issuer: Issuer) -> None:
    judging = server(issuer)
    of: list[dict[str, Any]] = [{}, {"jti": "2"}, {"sub": "bob"}, {"scope": "files"}]
    first, second, other, wider = [(await judging.bearer(issuer.token("ec", None, **claims))).key for claims in of]
    assert first == second
    assert len({first, other, wider}) == 3


def test_refusals_point_clients_to_the_issuer(issuer: Issuer) -> None:
    made = server(issuer)
    metadata = made.metadata("http://127.0.0.1:3000", "/mcp/files")
    assert metadata["resource"] == "http://127.0.0.1:3000/mcp/files"
    assert metadata["authorization_servers"] == [issuer.url]
    assert metadata["scopes_supported"] == ["notes", "files"]
    challenge = made.challenge("http://127.0.0.1:3000", "/mcp", "invalid_token", "the token has expired")
    assert challenge == (
        'Bearer resource_metadata="http://127.0.0.1:3000/.well-known/oauth-protected-resource/mcp", '
        'error="invalid_token", error_description="the token has expired", scope="notes files"'
    )
    behind_a_proxy = server(issuer, resource="https://tools.example/x/")
    assert behind_a_proxy.metadata("http://h", "/mcp")["resource"] == "https://tools.example/x/mcp"
    assert [resource_path(path) for path in ("/mcp", "/mcp/files/", "/mcpx", "/status")] == [
        "/mcp", "/mcp/files", "", ""
    ]  # fmt: skip


def test_without_an_issuer_no_oauth_library_is_loaded() -> None:
    script = "import sys; import services.front.transport.access; print({'jwt', 'cryptography'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
