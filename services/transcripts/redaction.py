"""Masks secrets before anything is stored: keys, tokens, passwords, private-key blocks.

One pass determines which rules apply to a text, usually none, and only those run. All patterns are RE2's, and further
conditions of a rule are checked on the bytes, so the cost is linear in the text's length. The replacement names the
rule, `[redacted:github-token]`, and is the same whenever the same text is masked, so that content keeps its hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from services.shared import linear
from services.transcripts.messages import Turn
from services.transcripts.operations.conversations import Block

_SECRET = ("secret", "secret_2", "secret_3")
"""Groups of one pattern, of which at most one matches."""


class Rule:
    """A kind of secret. `pattern` (RE2) matches wherever `spans` finds one: its group `secret`, or all of it."""

    def __init__(self, name: str, pattern: str) -> None:
        """Raises BadPattern."""
        self.name, self.pattern = name, pattern
        self._compiled = linear.compiled(pattern)
        self.groups = [index for group, index in self._compiled.groupindex.items() if group in _SECRET]

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the positions of secrets in the bytes of a text, in order."""
        for match in self._compiled.finditer(data):
            yield from (span for span in map(match.span, self.groups or [0]) if span[1] > span[0])


_KEY_CHARS = 16_384
_KEY_END = linear.compiled(r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(rb"[\s\\A-Za-z0-9+/=:,.\-]*")


class _PrivateKey(Rule):
    """Masks to the end of the key; if that is far away or cut off, as far as the text looks like a key."""

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        position = 0
        ending = _KEY_END.search(data)
        while match := self._compiled.search(data, position):
            position = match.end()
            # An end beyond this key may belong to the next one.
            if ending is not None and ending.start() < position:
                ending = _KEY_END.search(data, position)
            if ending is not None and ending.start() - position <= _KEY_CHARS:
                position = ending.end()
            elif body := _KEY_BODY.match(data, position):
                position = body.end()
            yield match.start(), position


class _WithDigits(Rule):
    """Secrets with at least two digits, unlike words that are written in the same way."""

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        for start, end in super().spans(data):
            if sum(map(data.count, b"0123456789", [start] * 10, [end] * 10)) >= 2:
                yield start, end


_SPACE = re.compile(rb"\s")
_KINDS = bytes(48 if 48 <= code < 58 else 97 if chr(code).isalpha() and code < 128 else 32 for code in range(256))
"""Maps digits to 0, ASCII letters to a, and the rest to a space."""
_WORD = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_LONGEST_NAME = 128
"""Longest text before a secret in the patterns of `_Mixed`, not counting spaces."""


class _Mixed(Rule):
    """Secrets of `least` characters that have one of each kind in `signs` before the next space.

    With `code`, a secret is never followed by an opening bracket: it ends before its last punctuation mark there.
    """

    def __init__(self, name: str, pattern: str, signs: bytes, least: int, *, code: bool = False) -> None:
        super().__init__(name, pattern)
        self._signs, self._least, self._code = signs, least, code

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        position = space = last = 0
        while match := self._compiled.search(data, position):
            start, end = match.span(self.groups[0])
            position = max(start, match.end() - _LONGEST_NAME)
            if start >= space:
                found = _SPACE.search(data, start)
                space = len(data) if found is None else found.start()
                kinds = data[start:space].translate(_KINDS)
                last = min(start + kinds.rfind(sign) if sign in kinds else -1 for sign in self._signs)
            if last < start:
                continue
            if self._code and data[end : end + 1] in (b"(", b"["):
                end = start + len(data[start:end].rstrip(_WORD)) - 1
                if end - start < self._least:
                    continue
            position = max(end, match.start() + 1)
            yield start, end


_SECRET_WORDS = (
    r"(?:api|access|auth|client|encryption|master|private|secret|session|signing|webhook|account|shared)[-_ ]?"
    r"(?:key|token|secret|password)|passw(?:or)?d|passphrase|secret|token|credentials?"
)

_PLACEHOLDER = re.compile(
    r"^(?:<.*>|\[.*\]|\{.*\}|\$.*|%.*|\*+|x+|\.+|your[-_ ].*|my[-_ ].*|example.*|placeholder.*|changeme|none|null|"
    r"undefined|true|false|string|str|optional.*|required|redacted|hidden|process\.env.*|os\.environ.*)$",
    re.IGNORECASE,
)

RULES = (
    # This also matches inside JSON, where line ends are escaped, and if the end was cut off.
    _PrivateKey("private-key", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    Rule("age-key", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    Rule("aws-access-key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    _WithDigits(
        "aws-secret",
        r"(?i)\baws[-_ ]?(?:secret[-_ ]?access[-_ ]?key|session[-_ ]?token)(?:[\s\"',:=]|\\[\"nt])+"
        r"(?P<secret>[A-Za-z0-9/+=]{16,})",
    ),
    Rule("github-token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})"),
    Rule("gitlab-token", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat)-[A-Za-z0-9_\-]{20,}"),
    Rule("anthropic-key", r"\bsk-ant-[A-Za-z0-9_\-]{20,}"),
    _WithDigits("dotted-key", r"\bsk-[A-Za-z0-9_\-]{3,}\.[A-Za-z0-9_\-.]{7,}[A-Za-z0-9_\-]"),
    Rule("openai-key", r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_\-]{20,}"),
    Rule("google-api-key", r"\bAIza[0-9A-Za-z_\-]{35}"),
    Rule("google-oauth-token", r"\bya29\.[0-9A-Za-z_\-]{20,}"),
    Rule("google-oauth-secret", r"\bGOCSPX-[0-9A-Za-z_\-]{20,}"),
    Rule("slack-token", r"\bxox[abeoprs]-[0-9A-Za-z\-]{10,}|\bxapp-[0-9]-[0-9A-Za-z\-]{10,}"),
    Rule("slack-webhook", r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_\-]{20,}"),
    Rule("discord-webhook", r"https://discord(?:app)?\.com/api/webhooks/\d+/[A-Za-z0-9_\-]{20,}"),
    Rule("discord-token", r"\b[MNO][A-Za-z\d]{23,25}\.[\w\-]{6}\.[\w\-]{27,}"),
    Rule("telegram-token", r"\b\d{8,10}:AA[A-Za-z0-9_\-]{33}\b"),
    Rule("stripe-key", r"\b(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{16,}|\bwhsec_[0-9A-Za-z+/=]{24,}"),
    Rule("npm-token", r"\bnpm_[A-Za-z0-9]{36}"),
    Rule("pypi-token", r"\bpypi-[A-Za-z0-9_\-]{50,}"),
    Rule("huggingface-token", r"\bhf_[A-Za-z0-9]{30,}"),
    Rule("sendgrid-key", r"\bSG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{32,}"),
    Rule("twilio-key", r"\b(?:SK|AC)[0-9a-f]{32}\b"),
    Rule("mailgun-key", r"\bkey-[0-9a-f]{32}\b"),
    Rule("digitalocean-token", r"\bdo[opr]_v1_[0-9a-f]{64}"),
    Rule("databricks-token", r"\bdapi[0-9a-f]{32}(?:-\d)?\b"),
    Rule("shopify-token", r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    Rule("linear-key", r"\blin_api_[A-Za-z0-9]{32,}"),
    Rule("notion-token", r"\b(?:ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43})"),
    Rule("vault-token", r"\bhv[sbr]\.[A-Za-z0-9_\-]{24,}"),
    Rule("groq-key", r"\bgsk_[A-Za-z0-9]{40,}"),
    Rule("xai-key", r"\bxai-[A-Za-z0-9]{60,}"),
    Rule("azure-key", r"(?i)(?:AccountKey|SharedAccessKey)=(?P<secret>[A-Za-z0-9+/]{32,}={0,2})"),
    Rule("jwt", r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}"),
    _Mixed(
        "authorization", r"(?i)\b(?:bearer|basic|token)\s+(?P<secret>[A-Za-z0-9._~+/\-]{20,}={0,2})", b"0", 20
    ),
    Rule(
        "api-key-header",
        r"(?i)\b(?:x-api-key|api-key|x-auth-token|x-goog-api-key|cookie|set-cookie)[\"']?\s*:\s*[\"']?"
        r"(?P<secret>[^\s\"',;]{8,})",
    ),
    Rule("url-password", r"\b[a-zA-Z][a-zA-Z0-9+.\-]*://[^\s/:@\"'<>]*:(?P<secret>[^\s/@\"'<>]{3,})@"),
    Rule(
        "url-key",
        r"(?i)[?&](?:key|api_?key|access_token|token|sig|signature|secret)=(?P<secret>[A-Za-z0-9._~%+/\-]{12,})",
    ),
    Rule(
        "quoted-secret",
        rf"(?i)(?:{_SECRET_WORDS})[\w\-]{{0,16}}\\?[\"']?\]?\s*(?:[:=]|=>|:=)\s*\\?"
        r"(?:\"(?P<secret>[^\"'`\s\\]{6,})\\?\"|'(?P<secret_2>[^\"'`\s\\]{6,})\\?'|`(?P<secret_3>[^\"'`\s\\]{6,})\\?`)",
    ),
    _Mixed(
        "assigned-secret",
        rf"(?i)(?:{_SECRET_WORDS})[\w\-]{{0,16}}[\"']?\s*[:=]\s*(?P<secret>[A-Za-z0-9_+/=@#!%^&*~.\-]{{8,}})",
        b"0a", 8, code=True,
    ),
    Rule(
        "sshpass-password",
        r"\bsshpass\s+(?:-v\s+)?-p\s*(?:\\?\"(?P<secret>[^\"\\\n]+)|'(?P<secret_2>[^'\n]+)|(?P<secret_3>[^\s\"'\\]+))",
    ),
    Rule("netrc-password", r"(?i)\blogin\s+\S+\s+password\s+(?P<secret>\S{4,})"),
)  # fmt: skip
"""In the order of application; text masked by one rule is not seen by later ones."""

SCREEN_BYTES = 64 * 1024 * 1024
"""Memory that the screening pass may use; it needs a few megabytes."""

REMEMBERED = 65_536
"""Number of remembered texts without secrets: 8 MB."""

_SECRET_KEY = re.compile(rf"(?i)^[\w.\-]*(?:{_SECRET_WORDS})$|^authorization$|^x-api-key$|^cookie$")


class Redactor:
    """Masks with `RULES` except those in `skip`, and with `more`."""

    def __init__(self, *, skip: Iterable[str] = (), more: Sequence[Rule] = ()) -> None:
        left_out = frozenset(skip)
        self._rules = (*(rule for rule in RULES if rule.name not in left_out), *more)
        self._screen = linear.searching(*(rule.pattern for rule in self._rules), max_mem=SCREEN_BYTES)
        self._keys = "assigned-secret" not in left_out
        self._clean: set[bytes] = set()

    def text(self, text: str) -> str:
        """Return `text` with its secrets masked; the same object if it has no secret."""
        if len(text) < 8:
            return text
        data = text.encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest in self._clean:
            return text
        masked = self._applied(data)
        if masked != data:
            return masked.decode("utf-8", "surrogatepass")
        # Clients send their history again with every turn.
        if len(self._clean) == REMEMBERED:
            self._clean.clear()
        self._clean.add(digest)
        return text

    def _applied(self, data: bytes) -> bytes:
        for index in sorted(self._screen.Match(data) or ()):
            rule = self._rules[index]
            pieces: list[bytes] = []
            kept = 0
            for start, end in rule.spans(data):
                if not (rule.groups and _is_harmless(data[start:end].decode("utf-8", "replace"))):
                    pieces += (data[kept:start], _mask(rule.name).encode())
                    kept = end
            data = b"".join((*pieces, data[kept:]))
        return data

    def json(self, value: Any) -> Any:
        """Mask every text in `value`, including keys; the value of a key that names a secret is masked completely."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.json(item) for item in value]
            case dict():
                return {self.text(key): self._entry(key, item) for key, item in value.items()}
            case _:
                return value

    def _entry(self, key: str, value: Any) -> Any:
        if self._keys and isinstance(value, str) and len(value) >= 4 and _SECRET_KEY.match(key):
            return value if _is_harmless(value) else _mask("assigned-secret")
        return self.json(value)

    def block(self, block: Block) -> Block:
        """Mask a block; the bytes of an image are left alone."""
        # The members of a block for `structs.replace`, each of its own type.
        changes: dict[str, Any] = {}
        for name in ("text", "tool_output", "image_url", "tool_name"):
            before = getattr(block, name)
            if before and (after := self.text(before)) is not before:
                changes[name] = after
        if block.tool_input is not None:
            changes["tool_input"] = self.json(block.tool_input)
        return msgspec.structs.replace(block, **changes) if changes else block

    def turn(self, turn: Turn) -> None:
        """Mask a whole turn in place."""
        turn.system = self.text(turn.system)
        for title in turn.titles:
            title.text = self.text(title.text)
        for message in turn.messages:
            message.content = [self.block(block) for block in message.content]
            message.thinking = self.json(message.thinking)


def _mask(name: str) -> str:
    return f"[redacted:{name}]"


def _is_harmless(secret: str) -> bool:
    return "[redacted:" in secret or _PLACEHOLDER.match(secret) is not None
