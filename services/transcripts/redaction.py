"""Secrets in what is said are masked before anything is kept: keys, tokens, passwords, private-key blocks.

One pass in linear time (RE2) tells which rules apply to a text, for most texts none; only those are applied.
What stands in a secret's place says which rule it was, `[redacted:github-token]`, and is the same wherever the same
text is masked, so that content keeps its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs

from proto.ops.transcripts import Block
from services.transcripts.messages import Turn


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` matches the secret, or a stretch with the secret as its group `secret`.

    `screen` is a pattern for RE2 that matches wherever `pattern` does, where `pattern` is beyond RE2's syntax.
    """

    name: str
    pattern: re.Pattern[str]
    screen: str = ""


def make_rule(name: str, pattern: str, screen: str = "") -> Rule:
    """Raises re.error."""
    return Rule(name, re.compile(pattern, re.ASCII), screen)


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
    make_rule(
        "private-key",
        # Also as it stands inside JSON, its line ends escaped; and one whose end was cut off.
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?s:.{0,16384}?)-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|[\s\\A-Za-z0-9+/=:,.\-]*)",
        r"PRIVATE KEY",
    ),
    make_rule("age-key", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    make_rule("aws-access-key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    make_rule("github-token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})"),
    make_rule("gitlab-token", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat)-[A-Za-z0-9_\-]{20,}"),
    make_rule("anthropic-key", r"\bsk-ant-[A-Za-z0-9_\-]{20,}"),
    make_rule("openai-key", r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_\-]{20,}"),
    make_rule("google-api-key", r"\bAIza[0-9A-Za-z_\-]{35}"),
    make_rule("google-oauth-token", r"\bya29\.[0-9A-Za-z_\-]{20,}"),
    make_rule("google-oauth-secret", r"\bGOCSPX-[0-9A-Za-z_\-]{20,}"),
    make_rule("slack-token", r"\bxox[abeoprs]-[0-9A-Za-z\-]{10,}|\bxapp-[0-9]-[0-9A-Za-z\-]{10,}"),
    make_rule("slack-webhook", r"https://hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_\-]{20,}"),
    make_rule("discord-webhook", r"https://discord(?:app)?\.com/api/webhooks/\d+/[A-Za-z0-9_\-]{20,}"),
    make_rule("discord-token", r"\b[MNO][A-Za-z\d]{23,25}\.[\w\-]{6}\.[\w\-]{27,}"),
    make_rule("telegram-token", r"\b\d{8,10}:AA[A-Za-z0-9_\-]{33}\b"),
    make_rule("stripe-key", r"\b(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{16,}|\bwhsec_[0-9A-Za-z+/=]{24,}"),
    make_rule("npm-token", r"\bnpm_[A-Za-z0-9]{36}"),
    make_rule("pypi-token", r"\bpypi-[A-Za-z0-9_\-]{50,}"),
    make_rule("huggingface-token", r"\bhf_[A-Za-z0-9]{30,}"),
    make_rule("sendgrid-key", r"\bSG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{32,}"),
    make_rule("twilio-key", r"\b(?:SK|AC)[0-9a-f]{32}\b"),
    make_rule("mailgun-key", r"\bkey-[0-9a-f]{32}\b"),
    make_rule("digitalocean-token", r"\bdo[opr]_v1_[0-9a-f]{64}"),
    make_rule("databricks-token", r"\bdapi[0-9a-f]{32}(?:-\d)?\b"),
    make_rule("shopify-token", r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    make_rule("linear-key", r"\blin_api_[A-Za-z0-9]{32,}"),
    make_rule("notion-token", r"\b(?:ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43})"),
    make_rule("vault-token", r"\bhv[sbr]\.[A-Za-z0-9_\-]{24,}"),
    make_rule("groq-key", r"\bgsk_[A-Za-z0-9]{40,}"),
    make_rule("xai-key", r"\bxai-[A-Za-z0-9]{60,}"),
    make_rule("azure-key", r"(?i)(?:AccountKey|SharedAccessKey)=(?P<secret>[A-Za-z0-9+/]{32,}={0,2})"),
    make_rule("jwt", r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}"),
    make_rule(
        "authorization",
        r"(?i)\b(?:bearer|basic|token)\s+(?P<secret>(?=[^\s]*\d)[A-Za-z0-9._~+/\-]{20,}={0,2})",
        r"(?i)\b(?:bearer|basic|token)\s+[A-Za-z0-9._~+/\-]{20}",
    ),
    make_rule(
        "api-key-header",
        r"(?i)\b(?:x-api-key|api-key|x-auth-token|x-goog-api-key|cookie|set-cookie)[\"']?\s*:\s*[\"']?"
        r"(?P<secret>[^\s\"',;]{8,})",
    ),
    make_rule("url-password", r"\b[a-zA-Z][a-zA-Z0-9+.\-]*://[^\s/:@\"'<>]*:(?P<secret>[^\s/@\"'<>]{3,})@"),
    make_rule(
        "url-key",
        r"(?i)[?&](?:key|api_?key|access_token|token|sig|signature|secret)=(?P<secret>[A-Za-z0-9._~%+/\-]{12,})",
    ),
    make_rule(
        "quoted-secret",
        rf"(?i)(?:{_SECRET_WORDS})[\w\-]{{0,16}}\\?[\"']?\]?\s*(?:[:=]|=>|:=)\s*"
        r"\\?(?P<q>[\"'`])(?P<secret>[^\"'`\s\\]{6,})\\?(?P=q)",
        rf"(?i)(?:{_SECRET_WORDS})[\w\-]{{0,16}}\\?[\"']?\]?\s*(?:[:=]|=>|:=)\s*\\?[\"'`]",
    ),
    make_rule(
        "assigned-secret",
        rf"(?i)(?:{_SECRET_WORDS})[\w\-]{{0,16}}[\"']?\s*[:=]\s*"
        r"(?P<secret>(?=[^\s]*\d)(?=[^\s]*[A-Za-z])[A-Za-z0-9_+/=@#!%^&*~.\-]{8,})(?![\w(\[])",
        rf"(?i)(?:{_SECRET_WORDS})[\w\-]{{0,16}}[\"']?\s*[:=]\s*[A-Za-z0-9_+/=@#!%^&*~.\-]{{8}}",
    ),
    make_rule("netrc-password", r"(?i)\blogin\s+\S+\s+password\s+(?P<secret>\S{4,})"),
)  # fmt: skip
"""In the order in which they are applied; what one has masked no later one sees."""

SCREEN_BYTES = 64 * 1024 * 1024
"""Memory that the screen may use; it needs a few."""

REMEMBERED = 65_536
"""Texts known to hold no secret: 8 MB."""

_SECRET_KEY = re.compile(rf"(?i)^[\w.\-]*(?:{_SECRET_WORDS})$|^authorization$|^x-api-key$|^cookie$")


class Redactor:
    """Masks by `RULES`, without those in `skip`, and by `more`."""

    def __init__(self, *, skip: Iterable[str] = (), more: Sequence[Rule] = ()) -> None:
        left_out = frozenset(skip)
        self._rules = (*(rule for rule in RULES if rule.name not in left_out), *more)
        options = re2.Options()
        options.max_mem = SCREEN_BYTES
        options.log_errors = False
        self._screen = re2.Set.SearchSet(options)
        self._screened: list[int] = []
        for index, rule in enumerate(self._rules):
            # A custom rule beyond RE2's syntax is always applied.
            with contextlib.suppress(re2.error):
                self._screen.Add(rule.screen or rule.pattern.pattern)
                self._screened.append(index)
        self._screen.Compile()
        self._always = set(range(len(self._rules))).difference(self._screened)
        self._keys = "assigned-secret" not in left_out
        self._clean: set[bytes] = set()

    def text(self, text: str) -> str:
        """`text` with its secrets masked; the same object where it holds no secret."""
        if len(text) < 8:
            return text
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._clean:
            return text
        masked = self._applied(text)
        if masked != text:
            return masked
        # Clients send their history again with every turn.
        if len(self._clean) == REMEMBERED:
            self._clean.clear()
        self._clean.add(digest)
        return text

    def _applied(self, text: str) -> str:
        found = self._always.union(self._screened[index] for index in self._screen.Match(text) or ())
        for index in sorted(found):
            text = self._rules[index].pattern.sub(partial(_masked, self._rules[index]), text)
        return text

    def json(self, value: Any) -> Any:
        """The same of every text in `value`, keys included; the value of a key that names a secret is masked whole."""
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
        """The same of a block; the bytes of an image are left alone."""
        # For `structs.replace`: members of a block, each of its own type.
        changes: dict[str, Any] = {}
        for name in ("text", "tool_output", "image_url", "tool_name"):
            before = getattr(block, name)
            if before and (after := self.text(before)) is not before:
                changes[name] = after
        if block.tool_input is not None:
            changes["tool_input"] = self.json(block.tool_input)
        return msgspec.structs.replace(block, **changes) if changes else block

    def turn(self, turn: Turn) -> None:
        """The same of a whole turn, in place."""
        turn.system = self.text(turn.system)
        for message in turn.messages:
            message.content = [self.block(block) for block in message.content]
            message.thinking = self.json(message.thinking)


def _masked(rule: Rule, match: re.Match[str]) -> str:
    if "secret" not in rule.pattern.groupindex:
        return _mask(rule.name)
    if _is_harmless(match["secret"]):
        return match[0]
    start, end = (position - match.start() for position in match.span("secret"))
    return f"{match[0][:start]}{_mask(rule.name)}{match[0][end:]}"


def _mask(name: str) -> str:
    return f"[redacted:{name}]"


def _is_harmless(secret: str | None) -> bool:
    return secret is None or "[redacted:" in secret or _PLACEHOLDER.match(secret) is not None
