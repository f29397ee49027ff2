"""The manifests of the registry `mounts`, and of the adapters, which the settings `[mcp.NAME]` make."""

from __future__ import annotations

import re
from collections.abc import Iterator

from proto.json_types import Layer
from proto.manifest import GIB, LIGHT, MCP, STALL_S, Keep, Manifest, Store, Template
from proto.mounts import (
    REFERENCE,
    REGISTRY,
    TABLE,
    MountSettings,
    is_url,
    operations_of,
    read_settings,
    service_of,
)

MANIFESTS = (
    Manifest(name=REGISTRY, order=95, essential=True, stall_s=STALL_S, rests=True, stores=(Store("", Keep.SOURCE),)),
)

MODULE = "adapter"

_BUNDLE = re.compile(r"^/.*/mcp/bundles/[0-9a-f]{64}$")
"""The folder of an unpacked bundle: in the data directory, which is hidden from confined servers otherwise."""

START_TRIES = 3
"""This many failed starts in a row are a crash loop: each may take minutes, and calls wait meanwhile."""


OWN_S = 5.0
"""The adapter itself limits the time of the server's start; it needs some more to begin, and to say what was wrong."""


def adapter(name: str, table: Layer) -> Manifest:
    """Return the manifest of a mount's adapter. Raises ValueError, which names the setting."""
    settings = settings_of(name, table)
    sources = tuple(_sources(settings))
    keeps_running = settings.stateful or settings.start == "eager"
    return Manifest(
        name=service_of(name),
        module=MODULE,
        # Only connections over HTTP use the SDK. From scratch, an adapter would have to load it as well.
        zygote=MCP if settings.is_remote else LIGHT,
        zygote_wait_s=30.0,
        stall_s=STALL_S,
        # The adapter itself limits the memory of the server's processes.
        memory_limit_bytes=GIB,
        open_files=65_536,
        restart=settings.restart,
        start_tries=START_TRIES,
        startup_timeout_s=settings.start_timeout + OWN_S,
        calls_wait_s=settings.start_timeout + OWN_S,
        lazy=settings.start == "lazy",
        # A standby could not start the server, which takes most of the time.
        standby=False,
        rests=settings.rest_after_s is not None or not keeps_running,
        rests_by="rest_after_s",
        rests_while=("rests", "yes"),
        confined=settings.confine,
        programs=True,
        network=settings.network,
        folders=tuple(settings.roots) if settings.confine else (),
        variables=tuple(source for source in sources if "/" not in source),
        files=(*(source for source in sources if "/" in source), *_BUNDLE.findall(settings.cwd)),
        stores=(Store("", Keep.DERIVED),),
    )


def settings_of(name: str, table: Layer) -> MountSettings:
    """Return the settings of a mount. Raises ValueError, which names the setting."""
    settings = read_settings(name, table)
    if sum(map(bool, (settings.command, settings.url, settings.url_from))) != 1:
        raise ValueError(f"mcp.{name}: set either `command` or `url` (or `url_from`)")
    for placeholder in settings.args_from:
        if not placeholder or not any(placeholder in each for each in settings.args):
            raise ValueError(
                f"mcp.{name}.args_from: no argument contains {placeholder!r}; write it where its text goes"
            )
    if settings.extra_instances and (settings.is_remote or settings.stateful or not settings.is_shared):
        raise ValueError(
            f"mcp.{name}.extra_instances: only for a `command` that all clients share and that is not `stateful`"
        )
    if settings.url and not is_url(settings.url):
        raise ValueError(f"mcp.{name}.url: expected an address that starts with http:// or https://")
    if settings.cluster is not None:
        for is_so, why in (
            (settings.is_remote, "only for a `command`; the server at `url` runs elsewhere anyway"),
            (settings.confine, "a confined server must run on this machine; remove `confine` or this table"),
            (_BUNDLE.match(settings.cwd), "a bundle is on this machine only; install its program on the nodes instead"),
        ):
            if is_so:
                raise ValueError(f"mcp.{name}.cluster: {why}")
    return settings


def _sources(settings: MountSettings) -> Iterator[str]:
    """Yield the variables and files with secrets that the settings name."""
    yield from settings.env_from
    yield from settings.args_from.values()
    for source in settings.headers_from.values():
        yield from REFERENCE.findall(source) or [source]
    if settings.url_from:
        yield settings.url_from
    if settings.oauth is not None and settings.oauth.client_secret_from:
        yield settings.oauth.client_secret_from


TEMPLATES = (Template(table=TABLE, module=MODULE, manifest=adapter, operations=operations_of),)
