"""`[http.oauth]` and `[audit]`: accepted settings, and the errors for all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import Config, ConfigError

OAUTH = """
[http.oauth]
issuer = "https://issuer.example"
audience = "https://tools.example"
"""
SCOPE = "[http.oauth.scopes.notes]\nsurfaces = ['knowledge']\nread_only = true\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "root" / "in").mkdir(parents=True)
    return tmp_path / "data"


def load_text(folder: Path, text: str) -> Config:
    (folder / "linckia.toml").write_text(text)
    return load(Flags(roots=(str(folder.parent / "root"),)), {"LINCKIA_DATA": str(folder)})


def test_an_issuer_is_for_the_front_and_its_keys_are_read_by_fetch(folder: Path) -> None:
    inside = folder.parent / "root" / "in"
    config = load_text(folder, f"{OAUTH}{SCOPE}[http.oauth.scopes.files]\nroots = ['{inside}']\n")
    assert config.http is not None
    assert config.http.oauth is not None
    assert list(config.http.oauth.scopes) == ["notes", "files"]
    assert config.http.oauth.scopes["files"].roots == (str(inside.resolve()),)
    assert config.http.oauth.algorithms == ("RS256", "ES256", "EdDSA")
    assert config.services["fetch"] == {"issuer": "https://issuer.example", "jwks_url": ""}


def test_without_an_issuer_nothing_changes(folder: Path) -> None:
    config = load_text(folder, "")
    assert config.http is not None
    assert config.http.oauth is None
    assert "fetch" not in config.services
    assert config.audit.enabled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OAUTH, ("http.oauth.scopes is empty",)),
        (OAUTH.replace("https://issuer", "http://issuer") + SCOPE, ("http.oauth.issuer", "https")),
        (OAUTH.replace("issuer.example", "issuer.example/?x=1") + SCOPE, ("http.oauth.issuer", "without query")),
        (OAUTH.replace("https://issuer.example", "issuer") + SCOPE, ("http.oauth.issuer",)),
        (OAUTH + "jwks_url = 'ftp://x'\n" + SCOPE, ("http.oauth.jwks_url",)),
        (OAUTH + "algorithms = ['HS256']\n" + SCOPE, ("http.oauth.algorithms: 'HS256'", "RS256")),
        (OAUTH + "algorithms = ['none']\n" + SCOPE, ("http.oauth.algorithms: 'none'",)),
        (OAUTH + "algorithms = []\n" + SCOPE, ("http.oauth.algorithms is empty",)),
        (OAUTH + "leeway_s = 4000\n" + SCOPE, ("http.oauth.leeway_s", "300")),
        (OAUTH + "isuer = 'x'\n" + SCOPE, ("isuer",)),
        (OAUTH + "[http.oauth.scopes.a]\nsurfaces = ['knowledg']", ("scopes.a", "did you mean knowledge")),
        (OAUTH + "[http.oauth.scopes.a]\nroots = ['/etc']", ("scopes.a", "/etc is not below a root")),
        (OAUTH + "[http.oauth.scopes.a]\nreadonly = true", ("readonly",)),
        ("[http.oauth]\nissuer = 'https://issuer.example'\n" + SCOPE, ("audience",)),
        ("[audit]\nmax_bytes = 1", ("audit.max_bytes", "4096")),
        ("[audit]\nfiles = 0", ("audit.files",)),
        ("[audit]\nmaxbytes = 1", ("audit.maxbytes", "did you mean max_bytes")),
    ],
)
def test_invalid_settings_are_named_and_nothing_starts(folder: Path, text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(folder, text)
    assert all(word in str(caught.value) for word in words), caught.value
