"""OAuth 2.1 resource server: access tokens (JSON Web Tokens, RFC 7519) of one issuer, and what leads a client to it.

A token is taken if it is signed by a key of the issuer's, by an algorithm of the settings, and is the issuer's, for
this server, and of this time.  Keys come from the issuer alone (`proto.ops.fetch.IssuerKeys`): of a token's header only
the names of algorithm and key are read, and only to choose among these keys.  What its bearer may do, the settings say
by scope.  The metadata (RFC 9728) and the challenges are those of MCP's authorization.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio

from linckia.proto.errors import LinckiaError
from linckia.proto.front import OAuth
from linckia.proto.grants import MAX_NAME_CHARS, Grant, Rate
from linckia.proto.operation import ALL, SURFACES

if TYPE_CHECKING:
    from jwt import PyJWK

WELL_KNOWN = "/.well-known/oauth-protected-resource"

MAX_TOKEN_CHARS = 8192
"""Of a token that is looked at; those of large organisations have some thousands."""

KEYS_FRESH_S = 3600.0
"""How long keys are used before they are read again; where they cannot be, those that are known go on."""

AGAIN_S = 60.0
"""Between two readings, whatever keys tokens name."""

PATIENCE_S = 1.0
"""For new keys, where those that are known would do."""

MIN_RSA_BITS = 2048

INSUFFICIENT = "insufficient_scope"
"""The token is good, and does not allow what was asked (RFC 6750, 3.1)."""

KEY_PREFIX = "oauth:"
"""Of the names of clients and of whose sessions are, so that no other token's are the same."""


class Unauthorized(Exception):
    """The request has no token, or one that is none; the message says what would be right, `described` the same for a
    challenge, and `status` is HTTP's."""

    status = 401

    def __init__(self, message: str, error: str = "invalid_token", described: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        """As RFC 6750 names it; empty where no token was sent."""
        self.described = message if described is None else described


class InvalidToken(Unauthorized):
    """It is none of the issuer's for this server at this time; the message says why, without what it holds."""


class InsufficientScope(Unauthorized):
    """It has no scope that the settings name."""

    status = 403


class KeysUnavailable(Unauthorized):
    """The issuer's keys are not known and cannot be had at the moment."""

    status = 503


class Bearer(NamedTuple):
    """Whose request it is."""

    grant: Grant | None = None
    """What it may do; None for all."""
    key: str = ""
    """Of its token, or of the subject of an issuer's tokens; no secret: a session belongs to the key that opened it."""
    expires: float | None = None
    """Seconds since 1970."""
    rate: Rate | None = None
    """How often it may call; None: as it likes."""


ReadKeys = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Answers the issuer's keys as JSON Web Keys.  Raises LinckiaError."""


class _Keys:
    """The issuer's keys, read when they are wanted."""

    def __init__(self, read: ReadKeys) -> None:
        self._read = read
        self._keys: list[dict[str, Any]] = []
        self._fresh_until = self._again_at = float("-inf")
        self._lock = trio.Lock()
        self._problem = ""

    async def find(self, kid: str | None, algorithm: str) -> PyJWK:
        """Raises InvalidToken: there is none; KeysUnavailable."""
        key = self._find(kid, algorithm)
        if key is not None and trio.current_time() >= self._fresh_until:
            with trio.move_on_after(PATIENCE_S):
                await self._refresh()
            key = self._find(kid, algorithm)
        if key is None:
            # It may be newer than what was read.
            await self._refresh()
            key = self._find(kid, algorithm)
        if key is not None:
            return _made(key, algorithm)
        if self._problem and not self._keys:
            raise KeysUnavailable(f"the keys of the issuer cannot be had: {self._problem}", "unavailable")
        raise InvalidToken("the issuer has no such key")

    async def _refresh(self) -> None:
        """Read the keys, once for all who wait for that, and not again for a while."""
        async with self._lock:
            if trio.current_time() < self._again_at:
                return
            self._again_at = trio.current_time() + AGAIN_S
            try:
                self._keys, self._problem = await self._read(), ""
                self._fresh_until = trio.current_time() + KEYS_FRESH_S
            except LinckiaError as error:
                self._problem = str(error)
                if not self._keys:
                    # Without any there is no service: a second is enough.
                    self._again_at = trio.current_time() + 1

    def _find(self, kid: str | None, algorithm: str) -> dict[str, Any] | None:
        fitting = [key for key in self._keys if _may_sign(key, algorithm) and (kid is None or key.get("kid") == kid)]
        # A token that names none is of the only one.
        return fitting[0] if len(fitting) == 1 else None


def _may_sign(key: dict[str, Any], algorithm: str) -> bool:
    """Whether a key is one for this algorithm, by all that it says of itself."""
    family = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}[algorithm[:2]]
    operations = key.get("key_ops")
    return (
        key.get("kty") == family
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def _made(data: dict[str, Any], algorithm: str) -> PyJWK:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        made = PyJWK(data, algorithm)
    except (PyJWTError, ValueError, TypeError) as error:
        raise InvalidToken(f"the issuer's key cannot be used: {error}") from None
    if getattr(made.key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and data["kty"] == "RSA":
        raise InvalidToken(f"the issuer's key has fewer than {MIN_RSA_BITS} bits")
    return made


class ResourceServer:
    """Judges tokens of one issuer."""

    def __init__(self, settings: OAuth, read_keys: ReadKeys) -> None:
        self._settings = settings
        self._keys = _Keys(read_keys)

    async def bearer(self, token: str) -> Bearer:
        """Raises InvalidToken, InsufficientScope, KeysUnavailable."""
        if len(token) > MAX_TOKEN_CHARS:
            raise InvalidToken(f"the token is longer than {MAX_TOKEN_CHARS} characters")
        # Here, since who has no issuer need not load them.
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # noqa: BLE001  # whatever a stranger's bytes make of the parser: they are no token
            raise InvalidToken("the token is no JSON Web Token") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            raise InvalidToken("the token is signed by no algorithm of http.oauth.algorithms")
        if kid is not None and not isinstance(kid, str):
            raise InvalidToken("the token names its key by what is no name")
        key = await self._keys.find(kid, algorithm)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=self._settings.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
            return self._bearer(claims)
        except Unauthorized:
            raise
        except jwt.InvalidTokenError as error:
            raise InvalidToken(_WHY.get(type(error).__name__, "the token is not valid")) from None
        except Exception:  # noqa: BLE001  # as above: an issuer's claims may be of any type
            raise InvalidToken("the token has claims that cannot be read") from None

    def _bearer(self, claims: dict[str, Any]) -> Bearer:
        given = _scopes(claims)
        scope = next((scope for name, scope in self._settings.scopes.items() if name in given), None)
        if scope is None:
            said = f"the token has none of the scopes {', '.join(self._settings.scopes)}"
            raise InsufficientScope(said, INSUFFICIENT)
        subject = next((value for name in _SUBJECT if isinstance(value := claims.get(name), str) and value), "")
        if not subject:
            raise InvalidToken("the token names neither subject nor client")
        grant = Grant((KEY_PREFIX + subject)[:MAX_NAME_CHARS], scope.surfaces, scope.roots, scope.read_only)
        # Whatever a client's tokens allow, a session is of one subject with one grant.
        key = KEY_PREFIX + hashlib.sha256(msgspec.msgpack.encode((self._settings.issuer, subject, grant))).hexdigest()
        return Bearer(grant, key, float(claims["exp"]) + self._settings.leeway_s)

    def metadata(self, base: str, path: str) -> dict[str, Any]:
        """Of the resource at `path` (RFC 9728, 2); `base` is this server's URL."""
        return {
            "resource": (self._settings.resource or base).rstrip("/") + path,
            "authorization_servers": [self._settings.issuer],
            "scopes_supported": list(self._settings.scopes),
            "bearer_methods_supported": ["header"],
            "resource_name": "Linckia",
        }

    def challenge(self, base: str, path: str, error: str = "", description: str = "") -> str:
        """`WWW-Authenticate` for a request without a token that would do (RFC 6750, 3; RFC 9728, 5.1), with the scopes
        that would: of a surface's, where a token's were not enough for it."""
        parts = [f'resource_metadata="{(self._settings.resource or base).rstrip("/")}{WELL_KNOWN}{path}"']
        if error:
            plain = description.encode("ascii", "replace").decode().replace('"', "'").replace("\\", "/")
            parts += [f'error="{error}"', f'error_description="{plain}"']
        surface = {"/mcp": ALL, "/v1/mcp": "transcripts"}.get(path, path.rpartition("/")[2])
        scopes = [
            name
            for name, given in self._settings.scopes.items()
            if error != INSUFFICIENT or not given.surfaces or surface not in SURFACES or surface in given.surfaces
        ]
        return f'Bearer {", ".join(parts)}, scope="{" ".join(scopes)}"'


_SUBJECT = ("sub", "client_id", "azp")

_WHY = {
    "ExpiredSignatureError": "the token has expired",
    "ImmatureSignatureError": "the token is not valid yet",
    "InvalidAudienceError": "the token is for another server",
    "InvalidIssuerError": "the token is another issuer's",
    "InvalidSignatureError": "the token's signature is wrong",
    "MissingRequiredClaimError": "the token says not all of iss, aud and exp",
}


def _scopes(claims: dict[str, Any]) -> set[str]:
    """Those that a token has: `scope` (RFC 9068), or `scp` as some issuers write."""
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        listed = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        found.update(scope for scope in listed if isinstance(scope, str))
    return found


def resource_path(path: str) -> str:
    """Of the resource that a request is for: one of MCP's endpoints, or the whole server."""
    return path.rstrip("/") if path == "/mcp" or path.startswith("/mcp/") or path == "/v1/mcp" else ""
