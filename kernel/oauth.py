"""`[http.oauth]`, checked: an issuer that can be trusted, and scopes that give what there is to give."""

from __future__ import annotations

import urllib.parse
from collections.abc import Collection
from pathlib import Path

from msgspec import structs

from kernel.settings import ConfigError
from proto.front import ASYMMETRIC, OAuth, ScopeGrant
from proto.hosts import is_loopback
from proto.near import nearest
from proto.operation import ALL, SURFACES


def checked(oauth: OAuth, roots: Collection[Path]) -> OAuth:
    """The settings with real paths.  Raises ConfigError, which names the setting and says what would be right."""
    _check_url("issuer", oauth.issuer)
    if oauth.jwks_url is not None:
        _check_url("jwks_url", oauth.jwks_url)
    if oauth.resource is not None:
        _check_url("resource", oauth.resource)
    for algorithm in oauth.algorithms:
        if algorithm not in ASYMMETRIC:
            raise ConfigError(f"http.oauth.algorithms: {algorithm!r} is none to trust{nearest(algorithm, ASYMMETRIC)}")
    if not oauth.algorithms or not oauth.scopes:
        missing = "scopes" if oauth.algorithms else "algorithms"
        raise ConfigError(f"http.oauth.{missing} is empty: no token of the issuer would be taken")
    scopes = {name: _scope(f"http.oauth.scopes.{name}", scope, roots) for name, scope in oauth.scopes.items()}
    return structs.replace(oauth, scopes=scopes)


def _scope(origin: str, scope: ScopeGrant, roots: Collection[Path]) -> ScopeGrant:
    for surface in scope.surfaces:
        if surface not in SURFACES:
            raise ConfigError(f"{origin}: there is no surface {surface!r}{nearest(surface, SURFACES)}")
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
    if (
        not host
        or url.query
        or url.fragment
        or url.username
        or not (url.scheme == "https" or (url.scheme == "http" and is_loopback(host)))
    ):
        plain = "an URL of https (http on this machine alone), without query, fragment and user"
        raise ConfigError(f"http.oauth.{name} is {text!r}; it is {plain}")
