"""The manifests of the registry `mounts`, and of the adapters, which the settings `[mcp.NAME]` make."""

from __future__ import annotations

import msgspec

from linckia.proto.json_types import Layer
from linckia.proto.manifest import STALL_S, Keep, Manifest, Store, Template
from linckia.proto.mounts import NAME_PATTERN, REGISTRY, TABLE, MountSettings, is_name, operations_of, service_of

MANIFESTS = (
    Manifest(name=REGISTRY, order=95, stall_s=STALL_S, rests=True, stores=(Store("", Keep.SOURCE),)),
)


def settings_of(name: str, table: Layer) -> MountSettings:
    """Return the settings of a mount. Raises ValueError, which names the setting."""
    if not is_name(name):
        raise ValueError(f"mcp.{name}: a mount's name must match {NAME_PATTERN}")
    try:
        settings = msgspec.convert(table, MountSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"mcp.{name}: {error}") from None
    if bool(settings.command) == bool(settings.url):
        raise ValueError(f"mcp.{name}: set either `command` or `url`")
    return settings


def adapter(name: str, table: Layer) -> Manifest:
    """Return the manifest of a mount's adapter. Raises ValueError, which names the setting."""
    settings_of(name, table)
    return Manifest(name=service_of(name), module="adapter")


TEMPLATES = (Template(table=TABLE, manifest=adapter, operations=operations_of),)
