"""Files with secrets of mounted servers, in `mcp/` of the data directory, so that `linckia.toml` contains none."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from proto.host.durable import replace_file
from proto.json_types import Layer
from proto.mounts import SECRET_NAME

FOLDER = "mcp"
"""Folder of the data directory for these files."""

BUNDLES = "bundles"
"""Folder in it for unpacked bundles."""

_SIMPLE = re.compile(r"[^\s\"'#]([^\r\n]*[^\s])?")
"""A value that a file of `NAME=value` lines can hold without quotes."""

_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_~.%-]{20,}")
"""A part of a path that may be a secret."""

_TOKEN = re.compile(
    r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9_~.+=-]{20,}|[0-9a-f]{32,}"
    r"|(?:sk|rk|pk|gh[pousr]|github_pat|glpat|xox[a-z]|xapp|hf|npm|pypi|ntn|secret|gsk|xai|lin_api)[-_][A-Za-z0-9_.-]{10,}"
)
"""An argument that is a key or a token, whatever option it belongs to."""

_NO_SECRETS = frozenset({"", "none", "null", "true", "false", "yes", "no", "basic", "bearer", "oauth", "oauth2"})
"""Values of options such as `--auth` that are no secrets."""

_PLACEHOLDER = "{{secret-{}}}"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def store_secrets(data_dir: Path, files: Mapping[str, str]) -> list[Path]:
    """Write the files with secrets, by path below the data directory; return their paths. Raises OSError."""
    folder = data_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        replace_file(data_dir / name, content.encode())
    return [data_dir / name for name in files]


def has_secret(url: str) -> bool:
    """Return whether an address may contain a secret: a user, a query, or a long part with digits and letters."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return True
    return "@" in parts.netloc or bool(parts.query) or any(map(_RANDOM.fullmatch, parts.path.split("/")))


def _secret_in(text: str, option: str) -> str:
    """Return the part of an argument that is probably secret, by its look and by the option before it; "" if none is.

    A wrong guess costs nothing: the server gets the same argument.
    """
    name, sign, value = text.partition("=")
    if not sign:
        name, sign, value = text.partition(": ")
    if sign and re.fullmatch(r"[\w.-]+", name) and SECRET_NAME.search(name):
        found = value
    elif (SECRET_NAME.search(option) and not text.startswith("-")) or _TOKEN.fullmatch(text):
        found = text
    elif sign and (_TOKEN.fullmatch(value) or _has_secret_url(value)):
        found = value
    else:
        found = text if _has_secret_url(text) else ""
    # Files are read without spaces at their ends.
    found = found.strip()
    return "" if found.lower() in _NO_SECRETS else found


def _has_secret_url(text: str) -> bool:
    return "://" in text and has_secret(text)


def secrets_of(args: Sequence[object], hidden: Collection[int] = ()) -> dict[int, str]:
    """Return the secret part of each argument that probably has one, by its place; arguments in `hidden` have one."""
    found: dict[int, str] = {}
    for place, text in enumerate(args):
        if not isinstance(text, str):
            # The settings will be refused for it.
            continue
        before = str(args[place - 1]) if place else ""
        option = before if before.startswith("-") and "=" not in before else ""
        if secret := _secret_in(text, option) or (text.strip() if place in hidden else ""):
            found[place] = secret
    return found


def without_secrets(
    name: str, table: Layer, *, hides_url: bool = False, hidden_args: Collection[int] = ()
) -> tuple[Layer, dict[str, str]]:
    """Return the table with files instead of literal variables and headers, of an address with a secret, and of secrets
    in arguments, and the content of those files. With `hides_url`, any address counts as secret; the arguments at the
    places `hidden_args` do."""
    given, files = dict(table), {}
    variables: dict[str, str] = given.pop("env", {})
    simple = {key: value for key, value in variables.items() if _SIMPLE.fullmatch(value)}
    if simple:
        path = f"{FOLDER}/{name}.env"
        files[path] = "".join(f"{key}={value}\n" for key, value in simple.items())
        given["env_from"] = [*given.get("env_from", []), path]
    if rest := {key: value for key, value in variables.items() if key not in simple}:
        path = f"{FOLDER}/{name}.json"
        files[path] = json.dumps(rest)
        given["env_from"] = [*given.get("env_from", []), path]
    if (url := given.get("url", "")) and (hides_url or has_secret(url)):
        path = f"{FOLDER}/{name}.url"
        files[path] = given.pop("url")
        given["url_from"] = path
    args: list[str] = list(given.get("args", []))
    for number, (place, secret) in enumerate(secrets_of(args, hidden_args).items(), 1):
        placeholder = _PLACEHOLDER.format(number)
        if any(placeholder in str(each) for each in args):
            continue
        path = f"{FOLDER}/{name}.arg-{number}"
        files[path] = secret
        args[place] = args[place].removesuffix(secret) + placeholder if args[place].endswith(secret) else placeholder
        given["args_from"] = {**given.get("args_from", {}), placeholder: path}
    if "args_from" in given:
        given["args"] = args
    for header, value in given.pop("headers", {}).items():
        path = f"{FOLDER}/{name}.{re.sub(r'[^A-Za-z0-9-]', '_', header)}.header"
        files[path] = value
        given["headers_from"] = {**given.get("headers_from", {}), header: path}
    return given, files


def resolved(table: Layer, data_dir: Path) -> Layer:
    """Return a table with real paths as it was before `without_secrets`, to compare it."""
    folder, given = data_dir / FOLDER, dict(table)

    def content(source: str) -> str | None:
        if _VARIABLE.fullmatch(source) or Path(source).parent != folder:
            return None
        try:
            return Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    for source in given.get("env_from", []):
        if (text := content(source)) is not None:
            given["env_from"] = [each for each in given["env_from"] if each != source]
            given["env"] = {**_variables(source, text), **given.get("env", {})}
    if (source := given.get("url_from", "")) and (text := content(source)) is not None:
        del given["url_from"]
        given["url"] = text.strip()
    for placeholder, source in given.get("args_from", {}).items():
        if (text := content(source)) is not None:
            given["args_from"] = {key: each for key, each in given["args_from"].items() if key != placeholder}
            given["args"] = [each.replace(placeholder, text.strip()) for each in given.get("args", [])]
    for header, source in given.get("headers_from", {}).items():
        if (text := content(source)) is not None:
            given["headers_from"] = {key: each for key, each in given["headers_from"].items() if key != header}
            given["headers"] = {**given.get("headers", {}), header: text}
    return {key: value for key, value in given.items() if value not in ([], {})}


def _variables(source: str, text: str) -> dict[str, str]:
    """Return the variables in a file that `without_secrets` made."""
    if source.endswith(".json"):
        with contextlib.suppress(ValueError):
            found: dict[str, str] = json.loads(text)
            return found
        return {}
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines() if "=" in line)}
