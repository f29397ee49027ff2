"""The settings in force: files, the environment, then flags (`layers`), each overriding the last.

Everything is checked before anything starts.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from kernel.cli.settings import denials
from kernel.cli.settings.layers import (
    ChaosSettings,
    Flags,
    LayerSettings,
    Root,
    check,
    check_names,
    from_environment,
    from_file,
    from_flags,
    with_short_tables,
)
from kernel.cli.settings.mount_settings import Mounts
from kernel.configure import denied_paths, manifests
from kernel.configure.config import (
    AlertSettings,
    AuditSettings,
    BackupSettings,
    ClusterSettings,
    Config,
    ConfigError,
    SourceSettings,
    files_of,
    is_remote,
    model_folders,
)
from proto import approvals
from proto import backup as backups
from proto.approvals import ApprovalSettings
from proto.control.address import find_data_dir, given_data_dir
from proto.grants import parse_rate
from proto.host import extras
from proto.json_types import Layer
from proto.manifest import Manifest
from proto.mounts import TABLE
from proto.operation import ALL, SURFACES
from proto.suggestions import nearest
from proto.wire.front import (
    ASYMMETRIC,
    DEFAULT_HOST,
    MIN_TOKEN_CHARACTERS,
    OFF,
    Http,
    OAuth,
    ScopeGrant,
    is_loopback,
)

FILE_NAMES = ("config.yaml", "linckia.toml")
"""Names of settings files in the data directory; the last one takes precedence."""

MIN_BACKUP_S = 60

PLAIN = (
    "read_only",
    "log_level",
    "own_users",
    "standbys",
    "rest_after_s",
    "only_mounts",
    "mcp_registry",
    "mcp_client_id",
)
"""Settings that are used as they are written."""

TABLES = ("alerts", "audit", "chaos", "sources")
"""Tables whose settings are merged one by one."""


_NO_TEXTS: Mapping[Path, str] = {}


def _models(services: Mapping[str, Layer], of: Manifest, environment: Mapping[str, str]) -> tuple[str, ...]:
    return model_folders(services.get(of.models_of, {}), environment)


def load(flags: Flags, environment: Mapping[str, str], texts: Mapping[Path, str] = _NO_TEXTS) -> Config:
    """Return the settings in force, or those that would be with other `texts` of files.

    Raises ConfigError, which names the setting and its origin.
    """
    data_dir = find_data_dir(flags.data_dir, environment)
    roots: dict[Path, str] = {}
    prompts: Layer = {}
    denied: list[str | Path] = [data_dir, given_data_dir(flags.data_dir, environment), *denied_paths.installation()]
    # Backups contain everything that is stored, including tokens.
    denied += [each.to for each in backups.known(data_dir).values() if each.succeeded and not is_remote(each.to)]
    denied += denials.set_aside(data_dir)
    patterns: list[str] = []
    http: Layer = {}
    tables: dict[str, Layer] = {name: {} for name in TABLES}
    backup: BackupSettings | None = None
    cluster: Layer = {}
    plain: Layer = {}
    services: dict[str, Layer] = {}
    packages = manifests.served(flags.packages)
    mounts = Mounts()
    found = tuple(each.manifest for each in packages)
    # If a client could write there, the kernel would run its code.
    denied += [folder for each in packages for folder in each.folders]
    warnings: list[str] = []
    for origin, folder, raw in layers_of(data_dir, flags, environment, found, warnings, texts):
        settings = check(raw, origin)
        if "roots" in raw:
            roots = _roots(settings.roots, folder, origin)
        prompts |= _prompts(settings, raw, folder, origin)
        plain |= {name: getattr(settings, name) for name in PLAIN if name in raw}
        tables = {name: table | raw.get(name, {}) for name, table in tables.items()}
        if settings.backup is not None:
            backup = _backup(settings.backup, folder, data_dir, origin)
            # It contains everything that is stored, and a passphrase opens it.
            denied += [each for each in (backup.to, backup.passphrase_file) if each and not is_remote(each)]
        cluster = _with_services(cluster, raw.get("cluster") or {})
        http |= _with_token(raw.get("http", {}), folder, origin)
        paths, more = denials.denials(settings.deny, origin)
        # The origin of a layer from a file is its path.
        denied += [*paths, *filter(os.path.isabs, (origin, http.get("token_file", "")))]
        patterns += more
        for name, table in _with_real_paths(settings.services, folder, found).items():
            services[name] = services.get(name, {}) | table
        mounts.add(settings.mcp, folder, origin, is_file=os.path.isabs(origin))
    denied += mounts.files
    merged = mounts.merged(flags.packages, plain.get("mcp_client_id", ""))
    denied += [path for each in found for path in files_of(each, services.get(each.name, {}))]
    # Services would load models that a client put there. A root inside such a folder is deliberate.
    loaded = {place for each in found if each.models_of for place in _models(services, each, environment)}
    denied += [place for place in loaded if not any(root.is_relative_to(os.path.realpath(place)) for root in roots)]
    served = _served(http)
    if served is not None and served.oauth is not None:
        oauth = _oauth(served.oauth, roots, merged)
        served = structs.replace(served, oauth=oauth)
        issuer = {"issuer": oauth.issuer, "jwks_url": oauth.jwks_url or ""}
        services |= {each.name: services.get(each.name, {}) | issuer for each in found if each.told_issuer}
    places = denied_paths.places(denied)
    denials.check_roots(roots, places)
    read_only = plain.get("read_only", False)
    return Config(
        data_dir=data_dir,
        roots=tuple(roots),
        read_only_roots=tuple(root for root, mode in roots.items() if read_only or mode == "read"),
        denied=places,
        denied_patterns=tuple(patterns),
        http=served,
        approvals=_approvals(services.get(approvals.SERVICE, {})),
        alerts=_alerts(msgspec.convert(tables["alerts"], AlertSettings)),
        audit=msgspec.convert(tables["audit"], AuditSettings),
        backup=backup,
        chaos_module=_injector(msgspec.convert(tables["chaos"], ChaosSettings)),
        cluster=_cluster(cluster),
        sources=_sources(msgspec.convert(tables["sources"], SourceSettings), environment),
        services=services,
        mounts=merged,
        disabled_mounts=mounts.disabled(),
        warnings=tuple(warnings),
        packages=flags.packages,
        **prompts,
        **plain,
    )


def _approvals(table: Layer) -> ApprovalSettings:
    """Return the settings that the router applies. Raises ConfigError."""
    # Every service may have these.
    own = {name: value for name, value in table.items() if name not in ("enabled", "disk_limit_bytes")}
    check_names(own, ApprovalSettings, f"{approvals.SERVICE}.", "settings")
    try:
        return msgspec.convert(own, ApprovalSettings)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        raise ConfigError(f"settings: {approvals.SERVICE}.{name}: {what[0].lower()}{what[1:]}") from None


def _alerts(alerts: AlertSettings) -> AlertSettings:
    """Return `[alerts]` after checking its URL. Raises ConfigError."""
    try:
        url = urllib.parse.urlsplit(alerts.webhook)
        is_right = url.scheme in ("http", "https") and bool(url.hostname) and not url.fragment and url.port != 0
    except ValueError:
        is_right = False
    if alerts.webhook and not is_right:
        # It is not quoted, as its path may be a secret.
        raise ConfigError("settings: alerts.webhook must be an http or https URL without a fragment")
    return alerts


def _sources(sources: SourceSettings, environment: Mapping[str, str]) -> SourceSettings:
    """Return `[sources]` after checking that the server can be found. Raises ConfigError."""
    if sources.store == "local":
        return sources
    if not extras.is_installed(extras.POSTGRES):
        raise ConfigError(
            f"settings: sources.store is {sources.store!r}, which needs a library; install it with "
            f"`{extras.command_for(extras.POSTGRES)}`"
        )
    if not environment.get(sources.dsn_env):
        raise ConfigError(f"settings: sources.dsn_env names {sources.dsn_env}, which is not set in the environment")
    return sources


def _injector(chaos: ChaosSettings) -> str | None:
    """Return the module that injects faults, if any. Raises ConfigError."""
    if chaos.module is not None and not chaos.allowed:
        raise ConfigError(f"settings: chaos.module is {chaos.module!r}, which needs chaos.allowed = true")
    return chaos.module


def _with_services(cluster: Layer, own: Layer) -> Layer:
    """Return the merged tables `[cluster]` of two layers, whose tables of services are merged by name."""
    services = cluster.get("services", {}) | own.get("services", {})
    return cluster | own | ({"services": services} if services else {})


def _cluster(cluster: Layer) -> ClusterSettings | None:
    """Return the settings of the cluster, if there is one. Raises ConfigError: what it needs is not installed."""
    if not cluster:
        return None
    if not extras.is_installed(extras.RAY):
        raise ConfigError(
            f"settings: cluster.engine is {cluster['engine']!r}, which is not installed; install it with "
            f"`{extras.command_for(extras.RAY)}`, or remove [cluster]"
        )
    return msgspec.convert(cluster, ClusterSettings)


def layers_of(
    data_dir: Path,
    flags: Flags,
    environment: Mapping[str, str],
    found: Collection[Manifest],
    warnings: list[str],
    texts: Mapping[Path, str] = _NO_TEXTS,
) -> Iterator[tuple[str, Path, Layer]]:
    """Yield each layer with its origin and the folder for its relative paths; the last takes precedence.

    `warnings` gets what was ignored.
    """
    tables = {each.name: each.table for each in found if each.table is not None}
    files = [path for name in FILE_NAMES if (path := data_dir / name).exists() or path in texts]
    if named := flags.config_file or environment.get("LINCKIA_CONFIG"):
        files.append(Path(named).expanduser().absolute())
    for path in files:
        yield str(path), path.parent, with_short_tables(from_file(path, texts.get(path)), tables, str(path))
    for name in flags.mcp_files:
        from kernel.cli.servers import client_files  # Rarely needed, and the import would slow down every start.

        path = Path(name).expanduser().absolute()
        listed = client_files.read(path, environment, [each.name for each in found])
        warnings += listed.warnings
        yield str(path), listed.folder, {TABLE: listed.tables}
    raw = from_environment(environment, tables)
    yield "the environment", Path.cwd(), with_short_tables(raw, tables, "the environment")
    yield "the command line", Path.cwd(), from_flags(flags)


def _with_real_paths(tables: Mapping[str, Layer], folder: Path, found: Iterable[Manifest]) -> dict[str, Layer]:
    """Return the services' tables, with settings that name files resolved against `folder`."""
    given = dict(tables)
    for each in found:
        own = given.get(each.name, {})
        named = [name for name in each.reads_files if isinstance(own.get(name), str) and own[name]]
        if named:
            given[each.name] = own | {name: str(folder / Path(own[name]).expanduser()) for name in named}
    return given


def _roots(given: Iterable[str | Root], folder: Path, origin: str) -> dict[Path, str]:
    """Return the roots with their modes. A root that is named twice is writable only if both say so."""
    roots: dict[Path, str] = {}
    for each in given:
        named = each if isinstance(each, Root) else Root(each)
        path = _root(named.path, folder, origin)
        roots[path] = "read" if "read" in (named.mode, roots.get(path)) else "write"
    return roots


def _prompts(settings: LayerSettings, raw: Layer, folder: Path, origin: str) -> Layer:
    """Return a layer's settings for prompts as fields of `Config`."""
    said: Layer = {}
    if "from_roots" in raw.get("prompts", {}):
        said["prompts_from_roots"] = settings.prompts.from_roots
    if settings.prompts.dir is not None:
        path = (folder / Path(settings.prompts.dir).expanduser()).resolve()
        if not path.is_dir():
            missing = f"there is no folder {path}; create it, or name another one"
            raise ConfigError(f"{origin}: prompts.dir: {missing}")
        said["prompts_dir"] = path
    return said


def _root(given: str, folder: Path, origin: str) -> Path:
    path = folder / Path(given).expanduser()
    try:
        real = path.resolve(strict=True)
    except OSError as error:
        raise ConfigError(
            f"{origin}: the root {given!r} does not exist ({error.strerror}); create it, or name another folder"
        ) from None
    if not real.is_dir():
        raise ConfigError(f"{origin}: the root {given!r} is a file; name the folder that holds it")
    if not os.access(real, os.R_OK | os.X_OK):
        raise ConfigError(f"{origin}: this user may not read the root {given!r}")
    return real


def _with_token(http: Layer, folder: Path, origin: str) -> Layer:
    """Return the `[http]` table of a layer with the token read from its file."""
    if (token_file := http.get("token_file")) is None:
        token = http.get("token", OFF)
        if token != OFF and len(token) < MIN_TOKEN_CHARACTERS:
            short = f"it has fewer than {MIN_TOKEN_CHARACTERS} characters"
            raise ConfigError(f"{origin}: http.token: {short}; leave it out for a generated token, or say off")
        return http
    if "token" in http:
        raise ConfigError(f"{origin}: http.token and http.token_file are both set; remove one of them")
    path = folder / Path(token_file).expanduser()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{origin}: http.token_file: cannot read {path}: {error}") from error
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(f"{origin}: http.token_file: {path} holds fewer than {MIN_TOKEN_CHARACTERS} characters")
    return {**http, "token": token, "token_file": str(path)}


def _backup(backup: BackupSettings, folder: Path, data_dir: Path, origin: str) -> BackupSettings:
    if backup.passphrase_file:
        file = (folder / Path(backup.passphrase_file).expanduser()).resolve()
        backup = structs.replace(backup, passphrase_file=str(file))
    if backup.append_only and not backup.is_encrypted:
        raise ConfigError(f"{origin}: backup.append_only needs a remote place in backup.to, or backup.encrypt")
    if backup.continuous and (backup.append_only or not backup.is_encrypted):
        raise ConfigError(
            f"{origin}: backup.continuous needs an encrypted place, where it may remove what is outdated: a remote one "
            "in backup.to, or backup.encrypt, without backup.append_only"
        )
    if backup.every_s < MIN_BACKUP_S:
        raise ConfigError(f"{origin}: backup.every is {backup.every!r}; write 30min, 6h, 1d or 1w, at least 1min")
    if is_remote(backup.to):
        # The password is not repeated.
        if "@" in backup.to and ":" in backup.to.partition("://")[2].rpartition("@")[0]:
            raise ConfigError(f"{origin}: backup.to contains a password; use an SSH key, or AWS's files of credentials")
        if not backup.to.startswith(("sftp://", "s3://")):
            raise ConfigError(f"{origin}: backup.to is {backup.to}; write a folder, sftp://… or s3://…")
        return backup
    to = (folder / Path(backup.to).expanduser()).resolve()
    if to.is_relative_to(data_dir) or to.suffix == ".tar":
        raise ConfigError(f"{origin}: backup.to is {to}; name a folder outside the data directory {data_dir}")
    return structs.replace(backup, to=str(to))


def _served(layer: Layer) -> Http | None:
    http = msgspec.convert(layer, Http)
    if not http.enabled:
        return None
    if http.rate is not None:
        try:
            parse_rate(http.rate)
        except ValueError as error:
            raise ConfigError(f"http.rate: {error}") from None
    if http.oauth is not None and http.token == OFF:
        raise ConfigError("http.oauth is set but http.token is off, so everything is open; remove one of them")
    if not http.is_loopback and http.token in (None, OFF):
        raise ConfigError(
            f"HTTP on {http.host} can be reached from other machines, and no token is set: set LINCKIA_TOKEN or "
            f"http.token_file, or listen on {DEFAULT_HOST}"
        )
    return http


def _oauth(oauth: OAuth, roots: Collection[Path], mounts: Collection[str]) -> OAuth:
    """Return `[http.oauth]` with real paths, after checking that issuer and scopes are usable. Raises ConfigError."""
    for name, url in (("issuer", oauth.issuer), ("jwks_url", oauth.jwks_url), ("resource", oauth.resource)):
        if url is not None:
            _check_url(name, url)
    for algorithm in oauth.algorithms:
        if algorithm not in ASYMMETRIC:
            problem = f"{algorithm!r} is not an asymmetric signature algorithm{nearest(algorithm, ASYMMETRIC)}"
            raise ConfigError(f"http.oauth.algorithms: {problem}")
    if not oauth.algorithms or not oauth.scopes:
        missing = "scopes" if oauth.algorithms else "algorithms"
        raise ConfigError(f"http.oauth.{missing} is empty, so no token of the issuer would be accepted")
    scopes = {name: _scope(f"http.oauth.scopes.{name}", scope, roots, mounts) for name, scope in oauth.scopes.items()}
    return structs.replace(oauth, scopes=scopes)


def _scope(origin: str, scope: ScopeGrant, roots: Collection[Path], mounts: Collection[str]) -> ScopeGrant:
    known = (*SURFACES, *mounts)
    for surface in scope.surfaces:
        if surface not in known:
            raise ConfigError(f"{origin}: there is no surface {surface!r}{nearest(surface, known)}")
    real = tuple(Path(root).expanduser().resolve() for root in scope.roots)
    for path in real:
        if not any(path.is_relative_to(root) for root in roots):
            there = ", ".join(map(str, roots)) or "none"
            raise ConfigError(f"{origin}: {path} is not below a root; the roots are: {there}")
    surfaces = () if ALL in scope.surfaces else scope.surfaces
    return structs.replace(scope, surfaces=surfaces, roots=tuple(map(str, real)))


def _check_url(name: str, text: str) -> None:
    try:
        url = urllib.parse.urlsplit(text)
        host = url.hostname or ""
    except ValueError:
        url, host = urllib.parse.urlsplit(""), ""
    is_safe = url.scheme == "https" or (url.scheme == "http" and is_loopback(host))
    if not host or not is_safe or url.query or url.fragment or url.username:
        plain = "an https URL (http only for this machine) without query, fragment and user"
        raise ConfigError(f"http.oauth.{name} is {text!r}; it must be {plain}")
