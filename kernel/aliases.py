"""Settings under other names: `[server]`, `config.yaml` and the variables that go with them.

Disk browsers for agents are set up by these; a set-up that exists can be kept.  They mean the same as the settings of
`[http]`, and in the environment the names that begin with LINCKIA_ win.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernel.json_types import Layer

YAML_NAME = "config.yaml"

SERVER = {"host": "host", "port": "port", "cors_origins": "allowed_origins"}
"""Keys of `[server]`, by the keys of `[http]` that they mean."""

VARIABLES = {"SERVER_HOST": "host", "SERVER_PORT": "port", "CORS_ORIGINS": "cors_origins"}
"""Variables, by the keys of `[server]` that they set."""


class AliasError(Exception):
    """A setting under another name is wrong; the message says what would be right."""


def translated(raw: Mapping[str, object]) -> Layer:
    """A layer of settings with `[server]` said as `[http]`.

    Raises:
        AliasError: names the key.
    """
    layer = dict(raw)
    server = layer.pop("server", None)
    if server is None:
        return layer
    if not isinstance(server, dict):
        raise AliasError(f"server: expected a table with {', '.join(SERVER)}")
    http = layer.get("http", {})
    if not isinstance(http, dict):
        return layer
    http = dict(http)
    for key, value in server.items():
        if key not in SERVER:
            raise AliasError(f"server.{key} is no setting; there are: {', '.join(SERVER)}")
        if SERVER[key] in http:
            raise AliasError(f"server.{key} and http.{SERVER[key]} mean the same and are both set; leave one of them")
        http[SERVER[key]] = _listed(value) if key == "cors_origins" else value
    return {**layer, "http": http}


def from_environment(environment: Mapping[str, str]) -> Layer:
    """The variables as one layer of settings.

    Raises:
        AliasError: a port that is none.
    """
    server: Layer = {}
    for name, key in VARIABLES.items():
        value = environment.get(name, "").strip()
        if not value:
            continue
        if key == "port" and not (value.isdecimal() and int(value) <= 65535):
            raise AliasError(f"{name} is {value!r}; it is a port, 0 to 65535")
        server[key] = int(value) if key == "port" else value
    return translated({"server": server}) if server else {}


def read_yaml(path: Path) -> Layer:
    """The settings in a YAML file.

    Raises:
        AliasError: it is not YAML, or no table of settings.
        OSError: it cannot be read.
    """
    import yaml  # Only where there is such a file: every start would wait for the import.

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AliasError(f"{path} is not valid YAML: {error}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise AliasError(f"{path} must hold keys and their values, such as `server:` with `port: 3000`")
    return raw


def _listed(value: object) -> object:
    """Origins may be written with commas, as the variable has them."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
