"""An issuer of OAuth tokens that tests run: its keys, its tokens, and the metadata that leads to them, over real HTTP.

`in_a_thread` serves until its context ends; `authorize` and `token` are those of the authorization code
grant with PKCE, for a client that follows the whole way.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import queue
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import jwt
import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from proto.wire.front import Http
from services.front.transport import http_server

AUDIENCE = "https://linckia.example"

_KEYS: dict[str, Any] = {
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": Ed25519PrivateKey.generate,
}
_PUBLIC: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


class Issuer:
    """Signs tokens; `private` has its keys by their names, `read` counts how often these were read."""

    def __init__(self, url: str = "https://issuer.example") -> None:
        self.url = url
        self.private: dict[str, tuple[str, Any]] = {}
        self.read = 0
        self.down = False
        self.asked: list[dict[str, str]] = []
        """The scopes that clients asked users to grant."""
        self._codes: dict[str, dict[str, str]] = {}

    def add(self, kid: str, algorithm: str = "ES256") -> None:
        """One more key."""
        self.private[kid] = (algorithm, _KEYS[algorithm]())

    def jwks(self) -> list[dict[str, Any]]:
        """The public keys."""
        return [
            {**_PUBLIC[alg].to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig", "alg": alg}
            for kid, (alg, key) in self.private.items()
        ]

    def token(self, kid: str, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token by a key; a claim that is None is left out."""
        algorithm, key = self.private[kid]
        now = int(time.time())
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "scope": "notes", "iat": now, "exp": now + 600}
        payload = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(payload, key, algorithm, {"kid": kid, **(header or {})})

    # ---- over HTTP ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_a_thread(self) -> Iterator[Issuer]:
        """Serve on the loopback, beside what the test does."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        started: queue.Queue[tuple[trio.lowlevel.TrioToken, trio.Event]] = queue.Queue()
        thread = threading.Thread(target=trio.run, args=(self._serve, listening, started))
        thread.start()
        token, ended = started.get(timeout=30)
        yield self
        token.run_sync_soon(ended.set)
        thread.join(30)

    async def _serve(
        self, listening: socket.socket, started: queue.Queue[tuple[trio.lowlevel.TrioToken, trio.Event]]
    ) -> None:
        paths = {
            "/.well-known/oauth-authorization-server": self._metadata, "/keys": self._jwks, "/register": self._register,
            "/authorize": self._authorize, "/token": self._token,
        }  # fmt: skip
        app = Starlette(routes=[Route(path, answer, methods=["GET", "POST"]) for path, answer in paths.items()])
        ended = trio.Event()
        started.put((trio.lowlevel.current_trio_token(), ended))
        await http_server.serve(app, Http(), listening, shutdown=ended.wait)

    async def _metadata(self, request: Request) -> Response:
        endpoints = {
            f"{name}_endpoint": f"{self.url}/{path}"
            for name, path in (("authorization", "authorize"), ("token", "token"), ("registration", "register"))
        }
        supported = {
            "response_types_supported": ["code"], "grant_types_supported": ["authorization_code"],
            "code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"],
        }  # fmt: skip
        return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **endpoints, **supported})

    async def _jwks(self, request: Request) -> Response:
        self.read += 1
        return JSONResponse({"keys": self.jwks()}, 503 if self.down else 200)

    async def _register(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body())
        return JSONResponse({**asked, "client_id": "a-client", "token_endpoint_auth_method": "none"}, 201)

    async def _authorize(self, request: Request) -> Response:
        """The user agrees at once."""
        code = secrets.token_urlsafe()
        self._codes[code] = dict(request.query_params)
        self.asked.append(self._codes[code])
        answer = urllib.parse.urlencode({"code": code, "state": request.query_params["state"]})
        return RedirectResponse(f"{request.query_params['redirect_uri']}?{answer}")

    async def _token(self, request: Request) -> Response:
        form = dict(urllib.parse.parse_qsl((await request.body()).decode()))
        asked = self._codes.pop(form["code"])
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
        token = self.token(next(iter(self.private)), scope=asked.get("scope"))
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": 600})
