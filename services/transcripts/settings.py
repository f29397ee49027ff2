"""`[services.transcripts]`, or `[transcripts]` for short."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from services.transcripts.intake.redaction import RULES, Redactor, Rule, make_rule


class RedactRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A custom pattern; a group named `secret` is masked alone, without one the whole match."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    enabled: Annotated[bool, Meta(description="Whether conversations are kept and searched at all")] = True
    redact: Annotated[bool, Meta(description="Whether secrets are masked before anything is kept")] = True
    redact_skip: Annotated[list[str], Meta(description="Names of rules that are not to be applied")] = []
    redact_rules: Annotated[list[RedactRule], Meta(description="Further rules")] = []
    strip_tags: Annotated[list[str], Meta(description="Further tags whose content is the agent's own")] = []
    search_patience_s: Annotated[
        float, Meta(ge=0, description="How long a search waits for what was just kept to be found")
    ] = 2.0


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Raises InvalidParams, naming the setting."""
    try:
        settings = msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"settings of transcripts: {error}") from None
    known = {rule.name for rule in RULES}
    for name in settings.redact_skip:
        if name not in known:
            raise InvalidParams(
                f"settings of transcripts: redact_skip: there is no rule {name!r}; rules: {', '.join(sorted(known))}"
            )
    return settings


def redactor_of(settings: Settings) -> Redactor | None:
    """What masks secrets; None where it is switched off.

    Raises:
        InvalidParams: a custom pattern is no regular expression.
    """
    if not settings.redact:
        return None
    return _made(tuple(settings.redact_skip), tuple(settings.redact_rules))


# Compiled in the rehearsal, and reused when the service starts: the longest step of its start.
@functools.lru_cache(maxsize=1)
def _made(skip: tuple[str, ...], more: tuple[RedactRule, ...]) -> Redactor:
    rules: list[Rule] = []
    for index, rule in enumerate(more):
        try:
            rules.append(make_rule(rule.name, rule.pattern))
        except re.error as error:
            raise InvalidParams(
                f"settings of transcripts: redact_rules[{index}].pattern is no regular expression: {error}"
            ) from None
    return Redactor(skip=skip, more=rules)
