"""Backups in a bucket of S3, or of a server that speaks it; credentials are those of AWS's own tools."""

from __future__ import annotations

import configparser
import datetime
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from proto.backup import BackupFailed
from services.backup.places import Damaged, Lost, Missing, lost

CONNECT: Final = "30s"
ANSWER: Final = "120s"
RETRY_S: Final = 60
_CREDENTIALS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_IN_FILES: Final = (*_CREDENTIALS, "region", "endpoint_url")


class S3:
    """A prefix in a bucket."""

    def __init__(self, name: str, bucket: str, prefix: str, endpoint: str) -> None:
        self.name = name
        settings: Any = _settings()
        if endpoint:
            settings["endpoint"] = endpoint
        if (given := settings.get("endpoint", "")) and not is_address(given):
            raise BackupFailed(f"the endpoint {given} is no address such as https://s3.example.org")
        retry: Any = {"max_retries": 5, "retry_timeout": datetime.timedelta(seconds=RETRY_S)}
        try:
            self._store = S3Store(
                bucket, prefix=prefix or None, config=settings, retry_config=retry,
                client_options={"connect_timeout": CONNECT, "timeout": ANSWER,
                                "allow_http": settings.get("endpoint", "").startswith("http://")},
            )  # fmt: skip
        except (BaseError, ValueError) as error:
            raise BackupFailed(f"cannot use {name}: {_told(error)}") from None

    def prepare(self) -> None:
        pass

    def put(self, path: str, content: bytes) -> None:
        try:
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            raise FileExistsError(path) from None
        except BaseError as error:
            raise self._failure(error) from None

    def get(self, path: str, most: int) -> bytes:
        try:
            found = obstore.get(self._store, path)
            if found.meta["size"] > most:
                raise Damaged(f"{path} in {self.name} is larger than any object of a backup")
            return bytes(found.bytes())
        except (NotFoundError, FileNotFoundError):
            raise Missing(f"{path} is missing in {self.name}") from None
        except BaseError as error:
            raise self._failure(error) from None

    def listing(self, folder: str) -> Iterator[tuple[str, int]]:
        try:
            for page in obstore.list(self._store, prefix=folder, chunk_size=1000):
                yield from ((each["path"], each["size"]) for each in page)
        except (BaseError, FileNotFoundError) as error:
            # The library has no error of its own for this; a folder without objects is an empty list.
            if " 404 Not Found" in str(error):
                raise lost(self.name, "there is no such bucket") from None
            raise self._failure(error) from None

    def delete(self, path: str) -> None:
        try:
            obstore.delete(self._store, path)
        except (NotFoundError, FileNotFoundError):
            pass
        except BaseError as error:
            raise self._failure(error) from None

    def close(self) -> None:
        pass

    def _failure(self, error: Exception) -> Lost:
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return lost(self.name, "the credentials do not permit it")
        if isinstance(error, NotFoundError | FileNotFoundError):
            return lost(self.name, "there is no such bucket")
        return lost(self.name, _told(error))


def is_address(text: str) -> bool:
    """Return whether this is the address of a server: the library panics at others."""
    try:
        url = urllib.parse.urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        return False


def _told(error: Exception) -> str:
    """Return the beginning of an error: the library appends the parts of the request to it."""
    text = str(error).partition("\n")[0].partition("Debug source")[0].strip()
    return f"{type(error).__name__.removesuffix('Error')}: {text}"


def _settings() -> dict[str, Any]:
    """Return what the environment, or the files of AWS's tools, say; without credentials of either kind, the library
    asks the machine it runs on."""
    found = {name.lower(): text for name, text in os.environ.items() if name.startswith("AWS_")}
    in_files = {} if found.get("aws_access_key_id") else _in_files(found.get("aws_profile") or "default")
    endpoint = found.get("aws_endpoint_url_s3") or found.get("aws_endpoint_url") or in_files.get("endpoint_url", "")
    region = found.get("aws_region") or found.get("aws_default_region") or in_files.get("region") or "us-east-1"
    credentials = {name: (found | in_files).get(name, "") for name in _CREDENTIALS}
    known = {**credentials, "aws_region": region, "endpoint": endpoint}
    return {name: text for name, text in known.items() if text}


def _in_files(profile: str) -> dict[str, str]:
    """Return what a profile has in the files that AWS's tools read. Raises BackupFailed."""
    files = (("AWS_CONFIG_FILE", "config", f"profile {profile}" if profile != "default" else profile),
             ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile))  # fmt: skip
    found: dict[str, str] = {}
    for variable, name, section in files:
        path = Path(os.environ.get(variable) or Path.home() / ".aws" / name).expanduser()
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            # Its text would quote the line.
            raise BackupFailed(f"cannot read {path}: {type(error).__name__}") from None
        if parser.has_section(section):
            found |= {key: text for key, text in parser.items(section) if key in _IN_FILES}
    return found
