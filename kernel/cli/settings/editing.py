"""The settings as the operator's page shows and changes them, while the kernel runs.

A change is written to `linckia.toml` only after the same checks as at a start: a setting that is refused changes
nothing. A value from the environment or the command line overrides the file, so it cannot be changed here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernel.cli.settings.described import Setting, described
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import layers_of, load
from kernel.cli.settings_file import NAME, REMOVED, SettingsFile, edited
from kernel.configure import catalog, manifests
from kernel.configure.config import Config, ConfigError
from kernel.configure.shown_settings import Refused, SettingShown
from kernel.control import mounts
from proto.control.address import find_data_dir
from proto.control.commands import Failed
from proto.names import module

CHECK_S: Final = 60.0

SECRETS: Final = frozenset({"token", "secret", "password", "key", "authorization", "headers", "env"})
"""Last words of settings whose values are not shown."""

ADDRESSES: Final = frozenset({"webhook"})
"""Settings with an address whose path may be a secret: only its host is shown."""

FLAGS: Final = {
    ("roots",): "PATH…", ("read_only",): "--read-only", ("log_level",): "--log-level", ("http",): "--http",
    ("http", "token_file"): "--token-file", ("only_mounts",): "--only-mounts",
}  # fmt: skip

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-.\"' ]+?)\s*=")


@dataclass(frozen=True)
class Settings:
    """The settings of one data directory, with the flags and the environment of its kernel. All methods block."""

    flags: Flags
    environment: Mapping[str, str]

    def shown(self) -> list[SettingShown]:
        """Return all settings with their values and sources. Raises ConfigError."""
        return [self._shown(each, self._sources()) for each in self._described()]

    def change(self, name: str, value: object, *, reset: bool) -> tuple[SettingShown, Config]:
        """Write a value, or remove the setting from the file; return it as it is then, and all settings in force.

        Raises Refused, whose message says what would be right; nothing was written. Raises OSError.
        """
        setting = next((each for each in self._described() if each.name == name), None)
        if setting is None:
            raise Refused(f"there is no setting {name!r}", field="name")
        file = SettingsFile(find_data_dir(self.flags.data_dir, self.environment))
        self._check_source(setting, file.path, reset=reset)
        try:
            text = edited(file.text, self._place(setting, file.text), REMOVED if reset else value)
            config = load(self.flags, self.environment, {file.path: text})
            entries = catalog.served(config.packages)
            catalog.pools(entries, config.services, rest_after_s=config.rest_after_s, standbys=config.standbys)
            mounts.mounted(config)
            if setting.declared and not reset:
                self._check_by_service(setting, config.services.get(setting.service, {}))
        except (ConfigError, Failed, ValueError) as error:
            raise Refused(str(error).removeprefix(f"{file.path}: "), field="value") from None
        file.write(text)
        return self._shown(setting, self._sources()), config

    def _described(self) -> list[Setting]:
        return described(manifests.served(self.flags.packages))

    def _sources(self) -> list[tuple[str, dict[str, Any]]]:
        found = tuple(each.manifest for each in manifests.served(self.flags.packages))
        data_dir = find_data_dir(self.flags.data_dir, self.environment)
        layers = layers_of(data_dir, self.flags, self.environment, found, [])
        return [(origin, raw) for origin, _, raw in layers]

    def _shown(self, setting: Setting, sources: Sequence[tuple[str, dict[str, Any]]]) -> SettingShown:
        value, source, kind = setting.default, "", "default"
        for origin, raw in sources:
            given = _at(raw, setting.path)
            if given is not REMOVED:
                value, (kind, source) = given, self._source(setting, origin)
        last = re.split(r"[_.]", setting.name)[-1]
        is_secret = last in SECRETS
        if last in ADDRESSES and isinstance(value, str) and value:
            parts = urllib.parse.urlsplit(value)
            value = f"{parts.scheme}://{parts.hostname}/…"
            is_secret = True
        return SettingShown(
            name=setting.name, kind=setting.kind, choices=setting.choices, text=setting.text, default=setting.default,
            value="…" if last in SECRETS and value else value, source=kind, where=source, is_secret=is_secret,
            variable=setting.variable, service=setting.service,
            acts="" if setting.path[0] == "alerts" else setting.service or "kernel",
        )  # fmt: skip

    def _source(self, setting: Setting, origin: str) -> tuple[str, str]:
        if os.path.isabs(origin):
            line = line_of(Path(origin), _names(setting))
            return "file", f"{origin}, line {line}" if line else origin
        if origin == "the environment":
            return "environment", setting.variable
        return "command line", FLAGS.get(setting.path, FLAGS.get(setting.path[:1], ""))

    def _check_source(self, setting: Setting, path: Path, *, reset: bool) -> None:
        """Raise Refused if something else than the file decides, or another file."""
        for origin, raw in self._sources():
            if _at(raw, setting.path) is REMOVED or origin == str(path):
                continue
            kind, where = self._source(setting, origin)
            if kind != "file" or reset or origin == self.flags.config_file:
                raise Refused(f"{setting.name} comes from the {kind} ({where}), which you change there", field="name")

    def _place(self, setting: Setting, text: str) -> tuple[str, ...]:
        """Return where the file has the setting, or should have it."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{NAME} is not valid TOML: {error}") from None
        return next((each for each in _names(setting) if _at(document, each) is not REMOVED), _names(setting)[0])

    def _check_by_service(self, setting: Setting, table: Mapping[str, object]) -> None:
        """Let the service's own code check its settings, in a process of its own. Raises ConfigError."""
        question = json.dumps({"declared": setting.declared, "name": setting.path[-1], "table": table})
        command = [sys.executable, "-P", "-m", module("kernel.cli.settings.service_check")]
        done = subprocess.run(
            command, input=question, capture_output=True, text=True, timeout=CHECK_S, check=False
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise ConfigError(said[-1] if said else f"the check of {setting.name} ended with {done.returncode}")


def _names(setting: Setting) -> tuple[tuple[str, ...], ...]:
    """Return the places of a setting in a file: in the short table, and in that of its service."""
    return tuple(dict.fromkeys((tuple(setting.name.split(".")), setting.path)))


def _at(raw: object, path: Sequence[str]) -> object:
    """Return the value at a path of tables; REMOVED if there is none."""
    for name in path:
        if not isinstance(raw, Mapping) or name not in raw:
            return REMOVED
        raw = raw[name]
    return raw


def line_of(path: Path, names: Sequence[Sequence[str]]) -> int:
    """Return the line of a TOML file where a setting with one of these names is; 0 if it is not found."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return 0
    return next((number for number, key in _keys(lines) if key in {".".join(each) for each in names}), 0)


def _keys(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    table = ""
    for number, line in enumerate(lines, 1):
        if (found := _TABLE.match(line)) is not None:
            table = "".join(found[1].split()).replace('"', "").replace("'", "") + "."
        elif (key := _KEY.match(line)) is not None:
            yield number, table + "".join(key[1].split()).replace('"', "").replace("'", "")
