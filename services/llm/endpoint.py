"""Sends requests to a language model endpoint, using OpenAI's chat completions or Ollama's `/api/chat`.

Whatever the other side does (refuses, hangs, streams without end, returns nonsense), a request ends within the given
time and size, with an error that says what happened. Redirects are not followed: the key is only sent to the configured
host. Proxies from the environment are ignored; only the one in the settings is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import httpx2
import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams, Timeout, Unavailable

MAX_ANSWER_BYTES = 1024 * 1024
"""Limit of the body: many times what any of our prompts asks for."""

_MAX_KEY_BYTES = 16 * 1024
_SHOWN = 200
_TOO_BUSY = 429
_MISUNDERSTOOD = (400, 422)


class LlmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `[llm]`; without `url` and `model` there is no language model, and nothing is sent anywhere."""

    url: Annotated[str, Meta(description="Endpoint, `http://127.0.0.1:11434` or `https://host/v1`")] = ""
    model: Annotated[str, Meta(description="Name at the endpoint")] = ""
    protocol: Annotated[
        Literal["openai", "ollama"], Meta(description="openai: chat completions; ollama: its own `/api/chat`")
    ] = "openai"
    key_env: Annotated[str, Meta(description="Environment variable with the key")] = ""
    key_file: Annotated[str, Meta(description="File with the key")] = ""
    proxy: Annotated[str, Meta(description="HTTP proxy to use")] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=25, description="Time limit for a complete answer")] = 5.0


def settings_error(message: str) -> InvalidParams:
    """Return the error for unusable settings."""
    return InvalidParams(f"settings of llm: {message}")


def read_key(settings: LlmSettings) -> str:
    """Return the key from where the settings say, or an empty string if they do not. Raises InvalidParams."""
    if settings.key_env and settings.key_file:
        raise settings_error("`key_env` and `key_file` are both set; remove one of them")
    if not settings.key_env and not settings.key_file:
        return ""
    if settings.key_env:
        key = os.environ.get(settings.key_env, "").strip()
        if not key:
            raise settings_error(f"the environment variable {settings.key_env} (`key_env`) is empty or not set")
    else:
        try:
            with Path(settings.key_file).expanduser().open("rb") as file:
                key = file.read(_MAX_KEY_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise settings_error(f"cannot read `key_file`: {error}") from None
    if not key or not key.isprintable() or not key.isascii():
        raise settings_error("the key is empty, or contains characters that HTTP headers do not allow")
    return key


def address(settings: LlmSettings) -> str:
    """Return the URL for requests; the settings may omit its standard ending. Raises InvalidParams."""
    try:
        parts = urlsplit(settings.url)
        valid = parts.port is None or parts.port > 0
    except ValueError:
        parts, valid = urlsplit(""), False
    if not valid or parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        said = f"`url` is {settings.url[:_SHOWN]!r}; it must be http://HOST:PORT or https://HOST/v1"
        raise settings_error(f"{said}, without a user name or password")
    path = parts.path.rstrip("/")
    if settings.protocol == "ollama":
        path = path if path.endswith("/api/chat") else f"{path.removesuffix('/api')}/api/chat"
    elif not path.endswith("/chat/completions"):
        path = f"{path or '/v1'}/chat/completions"
    return parts._replace(path=path, fragment="").geturl()


class _Message(msgspec.Struct, frozen=True):
    content: str | list[Mapping[str, Any]] | None = None


class _Answer(msgspec.Struct, frozen=True):
    """The part of an answer that is used: OpenAI's has `choices` with a message each, Ollama's a single message."""

    message: _Message | None = None
    choices: list[_Answer] = []


class Endpoint:
    """The configured endpoint; allows any number of concurrent requests."""

    def __init__(self, settings: LlmSettings) -> None:
        """Raises InvalidParams. Enter `client` before the first request."""
        for name in ("url", "model"):
            if not getattr(settings, name):
                raise settings_error(f"`{name}` is missing; both `url` and `model` are required")
        self._settings = settings
        self._url = address(settings)
        self.host = urlsplit(self._url).netloc
        # Some servers support neither `temperature` nor `response_format`; after a refusal both are omitted.
        self._plain = False
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "linckia"}
        # A compressed answer could be a thousand times as long as the bytes counted.
        headers["Accept-Encoding"] = "identity"
        if key := read_key(settings):
            headers["Authorization"] = f"Bearer {key}"
        proxy = settings.proxy or None
        try:
            self.client = httpx2.AsyncClient(headers=headers, timeout=settings.timeout_s, trust_env=False, proxy=proxy)
        except (ValueError, httpx2.InvalidURL) as error:
            raise settings_error(f"`proxy`: {error}") from None

    async def ask(self, instruction: str, material: str) -> str:
        """Return the model's answer to `material` under `instruction`; it should be a JSON object, but is not
        validated.

        Cancellation aborts the request and closes its connection.

        Raises:
            Timeout: the answer was not complete in time.
            Unavailable: no connection, an error status, or an answer that violates the protocol.
        """
        try:
            with trio.fail_after(self._settings.timeout_s):
                body = await self._post(self._request(instruction, material))
        except (trio.TooSlowError, httpx2.TimeoutException):
            raise Timeout(f"no answer from {self.host} within {self._settings.timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unavailable(f"cannot reach {self.host}: {str(error) or type(error).__name__}") from None
        return self._content(body)

    def _request(self, instruction: str, material: str) -> dict[str, Any]:
        # JSON of the endpoint's own protocol; servers may support more members than we send.
        request: dict[str, Any] = {
            "model": self._settings.model,
            "messages": [{"role": "system", "content": instruction}, {"role": "user", "content": material}],
            "stream": False,
        }
        if self._settings.protocol == "ollama":
            request |= {"format": "json", "options": {"temperature": 0}}
        elif not self._plain:
            request |= {"temperature": 0, "response_format": {"type": "json_object"}}
        return request

    async def _post(self, request: dict[str, Any]) -> bytes:
        status, body = await self._exchange(request)
        if status in _MISUNDERSTOOD and "response_format" in request:
            plainly = {name: request[name] for name in ("model", "messages", "stream")}
            status, body = await self._exchange(plainly)
            self._plain = self._plain or status == 200
        if status != 200:
            said = " ".join(body[: 4 * _SHOWN].decode(errors="replace").split())[:_SHOWN]
            advice = "; it is busy" if status == _TOO_BUSY else ""
            raise Unavailable(f"{self.host} returned status {status}{advice}{f': {said}' if said else ''}")
        return body

    async def _exchange(self, request: dict[str, Any]) -> tuple[int, bytes]:
        content = msgspec.json.encode(request)
        async with self.client.stream("POST", self._url, content=content) as response:
            body = bytearray()
            # Exit by cancellation: breaking out of the loop would leave the library's generators unfinished.
            with trio.CancelScope() as scope:
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        scope.cancel()
            if scope.cancelled_caught:
                raise Unavailable(f"{self.host} returned more than {MAX_ANSWER_BYTES} bytes")
            return response.status_code, bytes(body)

    def _content(self, body: bytes) -> str:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = _Answer()
        message = answer.message or next((choice.message for choice in answer.choices), None)
        if message is None:
            raise Unavailable(
                f"the answer of {self.host} violates the protocol {self._settings.protocol}; check `protocol` and"
                " `url` of [llm]"
            )
        content = message.content
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content)
        if not content:
            raise Unavailable(f"{self.host} returned an empty message")
        return content
