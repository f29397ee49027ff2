"""Birth certificates: what each generation is told, and what of the machine it may touch.

A service is confined to the root folders that were there when it was born. Where another folder appears under a root's
name (recreated, or mounted), the services that use it are restarted in order; a root that is gone changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import trio

from linckia.kernel import VERSION, users
from linckia.kernel.catalog import DISK_LIMIT, Entry
from linckia.kernel.config import Config, files_of, model_folders
from linckia.kernel.supervisor.spec import ServiceSpec
from linckia.proto.birth import Birth, Confinement
from linckia.proto.durable import replace_file
from linckia.proto.front import FrontSettings, PromptFolder
from linckia.proto.json_types import Layer
from linckia.proto.manifest import Manifest, Roots
from linckia.proto.ops import Table

SESSION_KEY: Final = "session.key"
"""Name of the file in the data directory with what signs the ids of HTTP sessions."""

LOOK_INTERVAL_S: Final = 1.0

KEY_BYTES: Final = 32

PROMPTS: Final = "prompts"
"""Name of the folder of prompts in the data directory and in each root."""

RESOLVER_FOLDERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/connman")
"""Where systems keep, and replace, the file that names their name servers; read by services with a network."""

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Names of the environment that OpenSSL reads, for services with a network.  No proxy: a proxy stands in settings."""

_log = logging.getLogger("linckia.kernel")


class RootFolders:
    """What the roots are at the moment."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(map(str, roots))
        self.identities = tuple(map(_identity, self._roots))
        """A text for each root that tells its folder from another of that name; empty where there never was one."""

    async def run(self, replaced: Callable[[], None]) -> None:
        """Look again and again, and call `replaced` whenever a root is another folder than before."""
        while self._roots:
            await trio.sleep(LOOK_INTERVAL_S)
            # A look at a network folder may take as long as it likes: not on the event loop.
            found = await trio.to_thread.run_sync(lambda: tuple(map(_identity, self._roots)), abandon_on_cancel=True)
            now = tuple(new or old for new, old in zip(found, self.identities, strict=True))
            if now != self.identities:
                changed = [root for root, new, old in zip(self._roots, now, self.identities, strict=True) if new != old]
                _log.warning("%s is another folder than before: the services that use it are restarted", changed)
                self.identities = now
                replaced()


def _identity(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        # Gone, or out of reach for the moment.
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def session_key(data_dir: Path) -> str:
    """What signs the ids of sessions over HTTP."""
    return secret(data_dir, SESSION_KEY, "sessions over HTTP end")


def secret(data_dir: Path, name: str, loss: str) -> str:
    """A key in hexadecimal: made once, for the user alone, and the same for the kernels after this one.

    Args:
        loss: what happens with this kernel where the key cannot be kept, for the log.
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
class Births:
    """The birth certificates of the services in `entries`, by their names; from spec, number and mode."""

    config: Config
    entries: Mapping[str, Entry]
    table: Table
    folders: RootFolders
    unserved: Collection[str] = ()

    def __call__(self, spec: ServiceSpec, generation: int, mode: str) -> Birth:
        config, entry = self.config, self.entries[spec.name]
        manifest = entry.manifest
        # The kernel's own to read.
        settings = {key: value for key, value in config.services.get(entry.service, {}).items() if key != DISK_LIMIT}
        if manifest.pool is not None:
            # How many it is one of, so that they share the cores out among themselves.
            workers = sum(other.service == entry.service for other in self.entries.values())
            settings = {**settings, "workers": workers}
        if spec.handoff:
            settings = {**settings, **self._of_front}
        told = {name: config.services.get(service, {}) for name, service in manifest.told_settings.items()}
        settings = {**settings, **told}
        roots = (*(tuple(map(str, config.roots)) if manifest.roots is not Roots.NONE else ()), *entry.follows)
        read_only = tuple(map(str, config.read_only_roots)) if manifest.roots is Roots.WRITE else roots
        writable = tuple(root for root in roots if root not in read_only)
        weights = model_folders(config.services.get(manifest.models_of, {})) if manifest.models_of else ()
        named = _named_files(manifest, settings)
        prompts = [folder["path"] for folder in self._of_front["prompt_folders"]] if spec.handoff else []
        needed = filter(Path.exists, (*map(Path, weights), *entry.folders))
        closed = self._enclosed or users.unreachable(needed) is not None
        reads = entry.uses_roots or prompts or named or closed
        resolver = (*RESOLVER_FOLDERS, *_certificates()) if manifest.network else ()
        return Birth(
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
            environment=_named_variables(manifest, settings),
            # Imported before the walls are up: a package from outside may lie anywhere.
            ops_modules=self._ops_modules if spec.handoff else entry.ops_modules,
            memory_limit_bytes=spec.memory_limit_bytes,
            disk_limit_bytes=spec.disk_limit_bytes,
            thread_limit=spec.thread_limit,
            in_flight=spec.in_flight,
            confinement=Confinement(
                # landlock adds up the rights of a root and of one inside it; the code tells them apart.
                read=(*read_only, *prompts, *weights, *resolver, *named, *map(str, entry.folders)),
                write=writable,
                network=manifest.network,
                connections=manifest.connections,
                gpu=mode == "cuda",
                watches=manifest.watches,
                open_files=manifest.open_files,
                # What it writes to the roots is to be root's, or of whom it was.
                user=users.user_of(config.data_dir, spec.name) if self._own_users and not writable else None,
                # A file with a key in it, and often a folder on the way to what all need, is for its owner alone.
                files_of_others="write" if writable else "read" if reads else "",
                folders=self.folders.identities if entry.uses_roots else (),
            ),
        )

    @functools.cached_property
    def _enclosed(self) -> bool:
        """Whether users of their own could not reach the installation or their folder without a privilege."""
        return self._own_users and users.enclosed(self.config.data_dir) is not None

    @functools.cached_property
    def _ops_modules(self) -> tuple[str, ...]:
        """Of all services."""
        return tuple(dict.fromkeys(module for entry in self.entries.values() for module in entry.ops_modules))

    @functools.cached_property
    def _of_front(self) -> Layer:
        """What a front is told beside its own settings."""
        config = self.config
        if config.prompts_dir is not None:
            folders: tuple[PromptFolder, ...] = (PromptFolder(str(config.prompts_dir)),)
        else:
            own = config.data_dir / PROMPTS
            own.mkdir(exist_ok=True, mode=0o700)
            roots = config.roots if config.prompts_from_roots else ()
            in_roots = (PromptFolder(str(root / PROMPTS), str(root)) for root in roots)
            folders = (PromptFolder(str(own)), *in_roots)
        told = FrontSettings(
            version=VERSION, http=config.http, prompt_folders=folders, ops_modules=self._ops_modules,
            session_key=session_key(config.data_dir), unserved=tuple(self.unserved),
        )  # fmt: skip
        return {name: value for name, value in msgspec.to_builtins(told).items() if name != "workers"}

    @functools.cached_property
    def _own_users(self) -> bool:
        """Whether services that write only to their own folder are users of their own; what it takes is done."""
        data_dir = self.config.data_dir
        if not self.config.own_users or users.obstacle() is not None:
            return False
        try:
            users.admit(data_dir)
        except OSError as error:
            _log.warning("services run as root, since %s keeps no owners: %s", data_dir, error.strerror)
            return False
        return True


def _named_files(manifest: Manifest, settings: Mapping[str, object]) -> tuple[str, ...]:
    """The files that the settings name for a service to read."""
    return tuple(str(Path(path).expanduser().resolve()) for path in files_of(manifest, settings))


def _named_variables(manifest: Manifest, settings: Mapping[str, object]) -> dict[str, str]:
    """What of the kernel's environment this service alone gets."""
    named = [settings.get(name) for name in manifest.reads_environment]
    wanted = (*named, *(CERTIFICATES if manifest.network else ()))
    return {name: os.environ[name] for name in wanted if isinstance(name, str) and name in os.environ}


def _certificates() -> tuple[str, ...]:
    """The file and the folders of certificates that the environment names."""
    return tuple(path for name in CERTIFICATES for path in os.environ.get(name, "").split(os.pathsep) if path)
