"""Launch configurations: the settings of each generation, and what it may access on this machine.

A service is confined to the root folders that existed when it was launched. If another folder appears under a root's
name (recreated, or mounted), the services that use it are restarted in order. A root that disappears changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio

from kernel import VERSION
from kernel.configure import denied_paths, users
from kernel.configure.catalog import DISK_LIMIT, ServiceEntry
from kernel.configure.config import Config, files_of, model_folders
from kernel.configure.spec import ServiceSpec
from proto.host.durable import replace_file
from proto.host.environment import of_programs
from proto.json_types import Layer
from proto.manifest import Keep, Manifest, Roots
from proto.ops import Table
from proto.wire.front import PATIENCE_S, PATIENCE_SETTING, FrontSettings, PromptFolder
from proto.wire.launch import Confinement, LaunchConfig

SOURCES: Final = "sources"
"""Where a service finds what it is told about its source databases (`services.runtime.loop`)."""

SESSION_KEY: Final = "session.key"
"""Name of the file in the data directory with the key that signs the ids of HTTP sessions."""

LOOK_INTERVAL_S: Final = 1.0

KEY_BYTES: Final = 32

PROMPTS: Final = "prompts"
"""Name of the folder of prompts, in the data directory and in each root."""

RESOLVER_FOLDERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/connman")
"""Where systems store and replace the file with their name servers. Services with a network may read it."""

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that OpenSSL reads, for services with a network. Proxies are set in the settings instead."""

_log = logging.getLogger("linckia.kernel")


class RootFolders:
    """Tracks which folders the roots currently are."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(map(str, roots))
        self.identities = tuple(map(_identity, self._roots))
        """An identifier for each root's folder, to tell it from another of that name; empty if it never existed."""

    async def run(self, replaced: Callable[[], None], pause: Callable[[float], Awaitable[None]] = trio.sleep) -> None:
        """Check periodically, and call `replaced` whenever a root has become another folder."""
        while self._roots:
            await pause(LOOK_INTERVAL_S)
            # Checking a network folder may take arbitrarily long, so not on the event loop.
            found = await trio.to_thread.run_sync(lambda: tuple(map(_identity, self._roots)), abandon_on_cancel=True)
            now = tuple(new or old for new, old in zip(found, self.identities, strict=True))
            if now != self.identities:
                changed = [root for root, new, old in zip(self._roots, now, self.identities, strict=True) if new != old]
                _log.warning("%s has been replaced by another folder: services that use it are restarted", changed)
                self.identities = now
                replaced()


def _identity(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        # It is gone, or temporarily out of reach.
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def session_key(data_dir: Path) -> str:
    """Return the key that signs the ids of HTTP sessions."""
    return secret(data_dir, SESSION_KEY, "sessions over HTTP end")


def sources_identity(data_dir: Path) -> str:
    """Return by what a server knows the kernels of this data directory."""
    return hashlib.sha256(f"sources {session_key(data_dir)}".encode()).hexdigest()[:32]


def secret(data_dir: Path, name: str, loss: str) -> str:
    """Return a key in hexadecimal: created once, readable by the user only, and reused by later kernels.

    Args:
        loss: what ends with this kernel if the key cannot be stored, for the log.
    """
    path = data_dir / name
    with contextlib.suppress(OSError, ValueError):
        if len(bytes.fromhex(found := path.read_text().strip())) >= KEY_BYTES:
            return found
    key = secrets.token_hex(KEY_BYTES)
    try:
        replace_file(path, key.encode())
    except OSError as error:
        _log.warning("%s with this kernel: %s cannot be written: %s", loss, path, error.strerror)
    return key


@dataclass
class LaunchConfigs:
    """Returns the launch configurations of the services in `entries`, by name; called with spec, number and mode."""

    config: Config
    entries: dict[str, ServiceEntry]
    """Changed while the kernel runs, as is `table`, when servers are mounted and removed."""
    table: Table
    folders: RootFolders
    unserved: Collection[str] = ()
    driver: str = ""
    """Secret by which the cluster's driver knows the adapters of mounted servers; empty without a cluster."""

    def __call__(self, spec: ServiceSpec, generation: int, mode: str) -> LaunchConfig:
        config, entry = self.config, self.entries[spec.name]
        manifest = entry.manifest
        # The kernel itself applies the disk limit.
        settings: Layer = {
            key: value for key, value in config.services.get(entry.service, {}).items() if key != DISK_LIMIT
        }
        if manifest.pool is not None:
            # The number of processes in the pool, so that they can share the cores.
            workers = sum(other.service == entry.service for other in self.entries.values())
            settings = {**settings, "workers": workers}
        if spec.handoff:
            settings = {**settings, **self._of_front}
        if entry.table is not None:
            settings = {**entry.table, "mount": entry.mount}
            if self.driver and "cluster" in entry.table:
                settings["driver"] = self.driver
        passed_on = {name: config.services.get(service, {}) for name, service in manifest.told_settings.items()}
        settings = {**settings, **passed_on}
        sources = self._sources(manifest)
        settings = {**settings, **sources}
        roots = (*(tuple(map(str, config.roots)) if manifest.roots is not Roots.NONE else ()), *entry.follows)
        read_only = tuple(map(str, config.read_only_roots)) if manifest.roots is Roots.WRITE else roots
        writable = (*(root for root in roots if root not in read_only), *map(os.path.realpath, manifest.folders))
        weights = model_folders(config.services.get(manifest.models_of, {})) if manifest.models_of else ()
        named = (*_named_files(manifest, settings), *map(os.path.realpath, manifest.files))
        prompts = [folder["path"] for folder in self._of_front["prompt_folders"]] if spec.handoff else []
        needed = filter(Path.exists, (*map(Path, weights), *entry.folders))
        closed = self._enclosed or users.unreachable(needed) is not None
        reads = entry.uses_roots or prompts or named or closed
        network = manifest.network or bool(settings.get(manifest.network_by)) or bool(sources)
        resolver = (*RESOLVER_FOLDERS, *_certificates()) if network else ()
        return LaunchConfig(
            service=spec.name,
            module=spec.module,
            generation=generation,
            operations=tuple(op.name for op in self.table.of_service(entry.service)),
            parent_pid=os.getpid(),
            data_dir=str(config.data_dir / "services" / spec.name),
            roots=roots,
            read_only=read_only,
            denied=config.denied if entry.uses_roots or prompts else (),
            denied_patterns=config.denied_patterns if entry.uses_roots or prompts else (),
            mode=mode,
            settings=settings,
            environment={
                **_named_variables(manifest, settings, network=network),
                **({(name := config.sources.dsn_env): os.environ[name]} if sources else {}),
            },
            programs=manifest.programs,
            # Imported before confinement: an external package may be anywhere.
            ops_modules=self._ops_modules if spec.handoff else entry.ops_modules,
            memory_limit_bytes=spec.memory_limit_bytes,
            disk_limit_bytes=spec.disk_limit_bytes,
            thread_limit=spec.thread_limit,
            in_flight=spec.in_flight,
            confinement=None
            if not manifest.confined
            else Confinement(
                # landlock adds up the rights of a root and of one inside it; the code distinguishes them.
                read=(*read_only, *prompts, *weights, *resolver, *named, *map(str, entry.folders)),
                write=writable,
                network=network,
                connections=manifest.connections,
                gpu=mode == "cuda",
                watches=manifest.watches,
                programs=manifest.programs,
                hidden=self._hidden if manifest.programs else (),
                open_files=manifest.open_files,
                # Files that it writes to the roots must belong to root, or keep their owner.
                # Programs are the user's.
                user=users.user_of(config.data_dir, spec.name)
                if self._own_users and not writable and not manifest.programs
                else None,
                # Files with keys, and often a folder on the way to shared files, are accessible only to their owner.
                files_of_others="write" if writable or manifest.programs else "read" if reads else "",
                folders=self.folders.identities if entry.uses_roots else (),
            ),
        )

    def _sources(self, manifest: Manifest) -> Layer:
        """Return what a service is told about source databases of its that are on a server."""
        files = [store.path for store in manifest.stores if store.movable]
        if self.config.sources.store == "local" or not files:
            return {}
        given, data_dir = self.config.sources, self.config.data_dir
        return {
            SOURCES: {
                "dsn_env": given.dsn_env, "schema": given.schema, "kernel": sources_identity(data_dir),
                "machine": given.machine or f"{socket.gethostname()}:{data_dir}", "databases": files,
                "derived": [store.path for store in manifest.stores if store.keep is Keep.DERIVED],
            }
        }  # fmt: skip

    @functools.cached_property
    def _enclosed(self) -> bool:
        """Whether services' own users could not reach the installation or their folder without a privilege."""
        return self._own_users and users.enclosed(self.config.data_dir) is not None

    @functools.cached_property
    def _hidden(self) -> tuple[str, ...]:
        """What programs may not read, as far as their sandbox can tell: all that clients may not, except the code."""
        code = denied_paths.places(denied_paths.installation())
        return (str(self.config.data_dir), *(path for path in self.config.denied if path not in code))

    @functools.cached_property
    def _ops_modules(self) -> tuple[str, ...]:
        """Operation modules of all services."""
        return tuple(dict.fromkeys(module for entry in self.entries.values() for module in entry.ops_modules))

    @functools.cached_property
    def _of_front(self) -> Layer:
        """Settings that the kernel passes to fronts in addition to their own."""
        config = self.config
        if config.prompts_dir is not None:
            folders: tuple[PromptFolder, ...] = (PromptFolder(str(config.prompts_dir)),)
        else:
            own = config.data_dir / PROMPTS
            own.mkdir(exist_ok=True, mode=0o700)
            roots = config.roots if config.prompts_from_roots else ()
            in_roots = (PromptFolder(str(root / PROMPTS), str(root)) for root in roots)
            folders = (PromptFolder(str(own)), *in_roots)
        front = FrontSettings(
            version=VERSION, http=config.http, prompt_folders=folders, ops_modules=self._ops_modules,
            session_key=session_key(config.data_dir), unserved=tuple(self.unserved), approvals=config.approvals,
            patience_s=_patience_s(config.services),
        )  # fmt: skip
        return {name: value for name, value in msgspec.to_builtins(front).items() if name != "workers"}

    @functools.cached_property
    def _own_users(self) -> bool:
        """Whether services that write only to their own folder get their own users; prepares the folders for it."""
        data_dir = self.config.data_dir
        if not self.config.own_users or users.obstacle() is not None:
            return False
        try:
            users.admit(data_dir)
        except OSError as error:
            _log.warning("services run as root, since %s does not support owners: %s", data_dir, error.strerror)
            return False
        return True


def _patience_s(services: Mapping[str, Layer]) -> float:
    """Return how long clients wait for a long call. The service itself reports a wrong value."""
    service, name = PATIENCE_SETTING
    found = services.get(service, {}).get(name)
    return float(found) if isinstance(found, int | float) and found > 0 else PATIENCE_S


def _named_files(manifest: Manifest, settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the files that the settings tell a service to read."""
    return tuple(str(Path(path).expanduser().resolve()) for path in files_of(manifest, settings))


def _named_variables(manifest: Manifest, settings: Mapping[str, object], *, network: bool) -> dict[str, str]:
    """Return the variables of the kernel's environment that only this service gets."""
    named = [settings.get(name) for name in manifest.reads_environment]
    wanted = (*named, *manifest.variables, *(CERTIFICATES if network else ()))
    if manifest.programs:
        wanted = (*of_programs(), *wanted)
    return {name: os.environ[name] for name in wanted if isinstance(name, str) and name in os.environ}


def _certificates() -> tuple[str, ...]:
    """Return the certificate file and folders that the environment names."""
    return tuple(path for name in CERTIFICATES for path in os.environ.get(name, "").split(os.pathsep) if path)
