"""What a download is called: by its `Content-Disposition` (RFC 6266), else by its URL."""

from __future__ import annotations

import re
import urllib.parse

MAX_CHARACTERS = 255

_EXTENDED = re.compile(r"filename\*\s*=\s*(?P<charset>[\w-]+)'[^']*'(?P<name>[^;\s]+)", re.IGNORECASE)
_QUOTED = re.compile(r'filename\s*=\s*"(?P<name>(?:[^"\\]|\\.)*)"', re.IGNORECASE)
_TOKEN = re.compile(r"filename\s*=\s*(?P<name>[^;\s\"]+)", re.IGNORECASE)


def name_of(url: str, disposition: str | None) -> str:
    """A plain file name, never a path."""
    said = _from_header(disposition) if disposition else ""
    parts = urllib.parse.urlsplit(url)
    last = urllib.parse.unquote(parts.path.rstrip("/").rsplit("/", 1)[-1])
    return _plain(said) or _plain(last) or _plain(parts.hostname or "") or "download"


def _from_header(disposition: str) -> str:
    if match := _EXTENDED.search(disposition):
        try:
            return urllib.parse.unquote(match["name"], encoding=match["charset"], errors="strict")
        except (LookupError, UnicodeDecodeError):
            return ""
    if match := _QUOTED.search(disposition):
        return re.sub(r"\\(.)", r"\1", match["name"])
    return match["name"] if (match := _TOKEN.search(disposition)) else ""


def _plain(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    clean = "".join(c for c in last if c.isprintable()).strip().strip(".").strip()
    return clean[-MAX_CHARACTERS:]
