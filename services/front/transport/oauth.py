"""An OAuth 2.1 resource server: validates access tokens (JSON Web Tokens, RFC 7519) of one issuer.

A token is valid if it is signed with one of the issuer's keys and an algorithm in the settings, names the issuer and
this server's audience, and has not expired.  Keys come only from the issuer (`proto.ops.fetch.IssuerKeys`); from a
token's header, only the algorithm and the key id are read, to choose among these keys.  The settings map scopes to
grants.  The metadata (RFC 9728) and the challenges follow MCP's authorization specification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio

from proto.errors import LinckiaError
from proto.grants import ISSUED, MAX_NAME_CHARS, Grant, Rate, issuer_id
from proto.operation import ALL, SURFACES
from proto.wire.front import OAuth

if TYPE_CHECKING:
    from jwt import PyJWK

WELL_KNOWN = "/.well-known/oauth-protected-resource"

MAX_TOKEN_CHARS = 8192
"""Longest token that is parsed; tokens of large organisations have some thousand characters."""

KEYS_FRESH_S = 3600.0
"""How long keys are used before they are fetched again; if that fails, the known keys stay in use."""

REFRESH_INTERVAL_S = 60.0
"""Shortest time between two fetches of the keys, even if tokens name unknown keys."""

REFRESH_WAIT_S = 1.0
"""How long a request waits for a refresh of the keys if its key is known already."""

MIN_RSA_BITS = 2048

INSUFFICIENT_SCOPE = "insufficient_scope"
"""Error for a valid token that does not allow the request (RFC 6750, 3.1)."""


class Unauthorized(Exception):
    """The request has no valid token; the message says what is required.

    `description` is the message for the challenge, `status` the HTTP status.
    """

    status = 401

    def __init__(self, message: str, error: str = "invalid_token", description: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        """Error code of RFC 6750; empty if no token was sent."""
        self.description = message if description is None else description


class InvalidToken(Unauthorized):
    """The token is not valid; the message says why without quoting its content."""


class InsufficientScope(Unauthorized):
    """The token has none of the scopes in the settings."""

    status = 403


class KeysUnavailable(Unauthorized):
    """The issuer's keys are unknown and cannot be fetched at the moment."""

    status = 503


class Bearer(NamedTuple):
    """The client that a token identifies."""

    grant: Grant | None = None
    """The client's grant; None allows everything."""
    key: str = ""
    """Identifies the token, or the subject of an issuer's tokens; not a secret.  A session belongs to one key."""
    expires: float | None = None
    """When the token expires, in seconds since 1970; None if it does not."""
    rate: Rate | None = None
    """The client's rate limit; None for no limit."""


ReadKeys = Callable[[], Awaitable[list[dict[str, Any]]]]
"""Fetches the issuer's keys, as JSON Web Keys.  Raises LinckiaError."""


class _Keys:
    """A cache of the issuer's keys, fetched when they are needed."""

    def __init__(self, read: ReadKeys) -> None:
        self._read = read
        self._keys: list[dict[str, Any]] = []
        self._fresh_until = self._next_refresh_at = float("-inf")
        self._lock = trio.Lock()
        self._problem = ""

    async def find(self, kid: str | None, algorithm: str) -> PyJWK:
        """Return the key with this id.  Raises InvalidToken if there is none, or KeysUnavailable."""
        key = self._find(kid, algorithm)
        if key is not None and trio.current_time() >= self._fresh_until:
            with trio.move_on_after(REFRESH_WAIT_S):
                await self._refresh()
            key = self._find(kid, algorithm)
        if key is None:
            # It may be newer than the cached keys.
            await self._refresh()
            key = self._find(kid, algorithm)
        if key is not None:
            return _usable_key(key, algorithm)
        if self._problem and not self._keys:
            raise KeysUnavailable(f"the issuer's keys cannot be fetched: {self._problem}", "unavailable")
        raise InvalidToken("the issuer has no such key")

    async def _refresh(self) -> None:
        """Fetch the keys, once for all waiting requests and not more often than `REFRESH_INTERVAL_S`."""
        async with self._lock:
            if trio.current_time() < self._next_refresh_at:
                return
            self._next_refresh_at = trio.current_time() + REFRESH_INTERVAL_S
            try:
                self._keys, self._problem = await self._read(), ""
                self._fresh_until = trio.current_time() + KEYS_FRESH_S
            except LinckiaError as error:
                self._problem = str(error)
                if not self._keys:
                    # Without any keys no client can be served, so retry after a second.
                    self._next_refresh_at = trio.current_time() + 1

    def _find(self, kid: str | None, algorithm: str) -> dict[str, Any] | None:
        matches = [key for key in self._keys if _may_sign(key, algorithm) and (kid is None or key.get("kid") == kid)]
        # A token without a key id is accepted only if one key matches.
        return matches[0] if len(matches) == 1 else None


def _may_sign(key: dict[str, Any], algorithm: str) -> bool:
    """Whether the key's own members allow signatures with this algorithm."""
    family = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}[algorithm[:2]]
    operations = key.get("key_ops")
    return (
        key.get("kty") == family
        and key.get("alg", algorithm) == algorithm
        and key.get("use", "sig") == "sig"
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def _usable_key(data: dict[str, Any], algorithm: str) -> PyJWK:
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        key = PyJWK(data, algorithm)
    except (PyJWTError, ValueError, TypeError) as error:
        raise InvalidToken(f"the issuer's key cannot be used: {error}") from None
    if getattr(key.key, "key_size", MIN_RSA_BITS) < MIN_RSA_BITS and data["kty"] == "RSA":
        raise InvalidToken(f"the issuer's key has fewer than {MIN_RSA_BITS} bits")
    return key


class ResourceServer:
    """Validates tokens of one issuer."""

    def __init__(self, settings: OAuth, read_keys: ReadKeys) -> None:
        self._settings = settings
        self._keys = _Keys(read_keys)

    async def bearer(self, token: str) -> Bearer:
        """Return the bearer of a token.  Raises InvalidToken, InsufficientScope, KeysUnavailable."""
        if len(token) > MAX_TOKEN_CHARS:
            raise InvalidToken(f"the token is longer than {MAX_TOKEN_CHARS} characters")
        # Imported here, because it is not needed without an issuer.
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # noqa: BLE001  # whatever the parser raises, the bytes are not a token
            raise InvalidToken("the token is not a JSON Web Token") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.algorithms:
            raise InvalidToken("the token is not signed with an algorithm in http.oauth.algorithms")
        if kid is not None and not isinstance(kid, str):
            raise InvalidToken("the token's key id (kid) is not a string")
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
        except Exception:  # noqa: BLE001  # claims may have any type, and the library may raise anything
            raise InvalidToken("the token has claims that cannot be read") from None

    def _bearer(self, claims: dict[str, Any]) -> Bearer:
        token_scopes = _scopes(claims)
        scope = next((scope for name, scope in self._settings.scopes.items() if name in token_scopes), None)
        if scope is None:
            message = f"the token has none of the scopes {', '.join(self._settings.scopes)}"
            raise InsufficientScope(message, INSUFFICIENT_SCOPE)
        subject = next((value for name in _SUBJECT if isinstance(value := claims.get(name), str) and value), "")
        if not subject:
            raise InvalidToken("the token names neither subject nor client")
        id_ = issuer_id(self._settings.issuer, subject)
        grant = Grant((ISSUED + subject)[:MAX_NAME_CHARS], scope.surfaces, scope.roots, scope.read_only, id_)
        # A session belongs to one subject with one grant, even if the client has tokens with different grants.
        key = ISSUED + hashlib.sha256(msgspec.msgpack.encode((self._settings.issuer, subject, grant))).hexdigest()
        return Bearer(grant, key, float(claims["exp"]) + self._settings.leeway_s)

    def metadata(self, base: str, path: str) -> dict[str, Any]:
        """Return the metadata of the resource at `path` (RFC 9728, 2); `base` is this server's URL."""
        return {
            "resource": (self._settings.resource or base).rstrip("/") + path,
            "authorization_servers": [self._settings.issuer],
            "scopes_supported": list(self._settings.scopes),
            "bearer_methods_supported": ["header"],
            "resource_name": "Linckia",
        }

    def challenge(self, base: str, path: str, error: str = "", description: str = "") -> str:
        """Return the value of `WWW-Authenticate` (RFC 6750, 3; RFC 9728, 5.1).

        It lists the scopes of the settings; if the token's scope was insufficient, only those that allow the surface.
        """
        parts = [f'resource_metadata="{(self._settings.resource or base).rstrip("/")}{WELL_KNOWN}{path}"']
        if error:
            plain = description.encode("ascii", "replace").decode().replace('"', "'").replace("\\", "/")
            parts += [f'error="{error}"', f'error_description="{plain}"']
        surface = {"/mcp": ALL, "/v1/mcp": "transcripts"}.get(path, path.rpartition("/")[2])
        scopes = [
            name
            for name, given in self._settings.scopes.items()
            if error != INSUFFICIENT_SCOPE or not given.surfaces or surface not in SURFACES or surface in given.surfaces
        ]
        return f'Bearer {", ".join(parts)}, scope="{" ".join(scopes)}"'


_SUBJECT = ("sub", "client_id", "azp")

_WHY = {
    "ExpiredSignatureError": "the token has expired",
    "ImmatureSignatureError": "the token is not valid yet",
    "InvalidAudienceError": "the token is for another server",
    "InvalidIssuerError": "the token is from another issuer",
    "InvalidSignatureError": "the token's signature is wrong",
    "MissingRequiredClaimError": "the token lacks one of the claims iss, aud and exp",
}


def _scopes(claims: dict[str, Any]) -> set[str]:
    """Return the scopes of a token: `scope` (RFC 9068), or `scp`, which some issuers use."""
    found: set[str] = set()
    for name in ("scope", "scp"):
        value = claims.get(name)
        listed = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        found.update(scope for scope in listed if isinstance(scope, str))
    return found


def resource_path(path: str) -> str:
    """Return the path of the resource that a request is for: an MCP endpoint, or empty for the whole server."""
    return path.rstrip("/") if path == "/mcp" or path.startswith("/mcp/") or path == "/v1/mcp" else ""
