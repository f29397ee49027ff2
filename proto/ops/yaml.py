"""The operation of `yaml` that another service calls."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from proto.operation import Family, Params, Role


@Family("yaml", role=Role.INTERNAL, callers=("knowledge",)).read("yaml_merge_text", deadline_s=30)
class MergeYamlText(Params[str], frozen=True, kw_only=True):
    """Set keys of a YAML mapping given as text, or with null remove them; all else stays byte for byte."""

    text: str
    values: Annotated[dict[str, Any], Meta(description="JSON values by key")]
