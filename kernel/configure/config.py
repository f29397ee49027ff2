"""The settings in force, as the kernel is given them; `kernel.cli.settings` reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from proto.approvals import ApprovalSettings
from proto.host.models import hub
from proto.json_types import Layer
from proto.manifest import Manifest
from proto.wire.cluster import Resources
from proto.wire.front import Http

REST_AFTER_S: Final = 300.0

MCP_REGISTRY: Final = "https://registry.modelcontextprotocol.io"

STANDS_BY: Final = "stands_by"
"""Where a service says why it waits for its source database (`services.runtime.loop`)."""

_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|min|m|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds(span: str) -> float | None:
    """Return the seconds in `90s`, `10min`, `1h`, `2d` or `4w`; None for any other text."""
    written = _SPAN.fullmatch(span.strip())
    return float(written[1]) * _SECONDS[written[2]] if written else None


class ConfigError(Exception):
    """A setting is wrong; the message names it, its origin, and what would be right."""


class AuditSettings(msgspec.Struct, frozen=True):
    """`[audit]`: whether there is an audit log, what it records, when its file is rotated, and the number of files."""

    enabled: bool = True
    """Whether there is an audit log."""
    reads: bool = False
    """Whether calls that change nothing are recorded, too."""
    max_bytes: Annotated[int, Meta(ge=4096)] = 16 * 1024 * 1024
    """Size in bytes at which the file is rotated."""
    files: Annotated[int, Meta(ge=1, le=1000)] = 8
    """Number of files kept."""


def is_remote(to: str) -> bool:
    """Return whether backups to a destination leave this machine."""
    return "://" in to


class BackupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[backup]`: where backups are made, the interval between them, and how many to keep."""

    to: str
    """A folder outside the data directory, `sftp://[user@]host[:port]/path` or `s3://bucket/prefix`."""
    every: str = "24h"
    """Interval between backups."""
    keep: Annotated[int, Meta(ge=1, le=10_000)] = 14
    """Number of snapshots kept."""
    endpoint: str = ""
    """Address of an S3 server other than Amazon's."""
    encrypt: bool = False
    """Whether backups in a folder are encrypted; those in remote places always are."""
    append_only: bool = False
    """Whether nothing is ever removed or overwritten, so that the credentials need not permit it."""
    continuous: bool = False
    """Whether changes are sent within seconds; `every` is then the interval between the snapshots that are kept."""
    passphrase_file: str = ""
    """File with a passphrase, from which the backup can be read without the key."""

    @property
    def is_encrypted(self) -> bool:
        return self.encrypt or is_remote(self.to)

    @property
    def every_s(self) -> float:
        return seconds(self.every) or 0.0


class SourceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[sources]`: where documents, conversations and memories themselves are."""

    store: Literal["local", "postgres"] = "local"
    """Where they are: local, in files of the data directory; or postgres, on a server, so that another kernel can take
    over."""
    dsn_env: str = "DATABASE_URL"
    """Variable of the environment that has the connection string of the server."""
    schema: Annotated[str, Meta(pattern="^[a-z_][a-z0-9_]{0,30}$")] = "linckia"
    """Schema of the tables on the server."""
    machine: str = ""
    """Name of this kernel for people; by default the name of the host, and the data directory."""


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[alerts]`: what the operator is told without asking, on the page, as events, and at a webhook."""

    webhook: str = ""
    """URL that gets each alert as a JSON POST; empty: none. An address of this machine or of a private network must be
    written as a number, such as `http://127.0.0.1:9093/alerts`."""
    deaths: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Deaths of a service within ten minutes that are an alert; 1: each death is."""
    disk_free_percent: Annotated[float, Meta(ge=0, le=100)] = 5.0
    """Free part of the data directory's disk below which there is an alert; 0: never."""
    backup_intervals: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    """Age of the latest backup, as a multiple of the interval in `[backup]`, that is an alert."""


class Placed(Resources, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[cluster.services.NAME]`: what each process of the service reserves, and how many there may be."""

    min: Annotated[int, Meta(ge=0)] | None = None
    """Processes that always run. With `max`; by default, all may rest."""
    max: Annotated[int, Meta(ge=1)] | None = None
    """Greatest number of processes: another one starts when calls wait for longer than a second. Instead of `workers`.
    """

    @property
    def reserved(self) -> Resources:
        """What a process reserves."""
        return Resources(**{name: getattr(self, name) for name in Resources.__struct_fields__})


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[cluster]`: other machines that run stateless services."""

    engine: Literal["ray"]
    """What connects the machines: ray."""
    address: str = "auto"
    """Address of the cluster as Ray knows it: HOST:PORT of its head, or auto for the one that this machine is in."""
    host: str = ""
    """Address of this machine for the nodes; by default, the one that Ray knows."""
    services: dict[str, Placed] = {}
    """Tables `[cluster.services.NAME]`: services that run on the cluster, what each process of them reserves, and their
    number."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `roots` and `data_dir` are real paths; `http` is None if HTTP is disabled.

    `services` holds each service's table, which the service checks itself. `prompts_dir` is None if prompts come from
    the folders in the data directory and the roots. `read_only_roots` are some of the roots; in a `read_only` system,
    all of them. `denied` (real paths) and `denied_patterns` cannot be accessed even below a root.
    """

    data_dir: Path
    roots: tuple[Path, ...] = ()
    read_only_roots: tuple[Path, ...] = ()
    read_only: bool = False
    denied: tuple[str, ...] = ()
    denied_patterns: tuple[str, ...] = ()
    http: Http | None = Http()
    alerts: AlertSettings = AlertSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    audit: AuditSettings = AuditSettings()
    backup: BackupSettings | None = None
    chaos_module: str | None = None
    cluster: ClusterSettings | None = None
    sources: SourceSettings = SourceSettings()
    services: dict[str, Layer] = {}
    mounts: dict[str, Layer] = {}
    """The tables of the mounted MCP servers that are enabled, with real paths."""
    disabled_mounts: list[str] = []
    only_mounts: bool = False
    warnings: tuple[str, ...] = ()
    """What was ignored in files of MCP clients."""
    log_level: str = "info"
    prompts_dir: Path | None = None
    prompts_from_roots: bool = True
    own_users: bool = True
    standbys: bool = True
    packages: tuple[str, ...] = ()
    """Python packages whose services are served as well."""
    rest_after_s: float = REST_AFTER_S
    mcp_registry: str = MCP_REGISTRY
    mcp_client_id: str = ""


def model_folders(settings: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the folders that may hold model weights: the one that the settings name, and the hub's cache.

    The cache's parent folder is not included, since it holds the user's key for the hub.
    """
    model = settings.get("model")
    named = isinstance(model, str) and model.startswith(("/", "~", "."))
    return (str(hub(environment)), *([str(Path(str(model)).expanduser().resolve())] if named else []))


def files_of(manifest: Manifest, settings: Mapping[str, object]) -> list[str]:
    """Return the files that a service's settings tell it to read."""
    given = (settings.get(name) for name in manifest.reads_files)
    return [path for path in given if isinstance(path, str) and path]
