"""Secrets of mounted servers come from variables and files, and are not in messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.mounts import MountSettings
from services.mounts.manifest import adapter, settings_of
from services.mounts.process.environment import Secrets, SettingProblem, environment_of, headers_of, url_of


def test_variables_of_several_lines_come_from_a_json_object(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"PEM": "two\\nlines"}')
    secrets = Secrets()
    found = environment_of(MountSettings(command="a", env_from=[str(tmp_path / "a.json")]), {}, "mark", secrets)
    assert found["PEM"] == "two\nlines"
    assert secrets.redact("it is two\nlines") == "it is ***"
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(SettingProblem, match="not a JSON object"):
        environment_of(MountSettings(command="a", env_from=[str(tmp_path / "a.json")]), {}, "mark", secrets)


@pytest.mark.parametrize("source", ["THEIR_URL", "file"])
def test_an_address_with_a_secret_comes_from_elsewhere_and_stays_out_of_logs(tmp_path: Path, source: str) -> None:
    url = "https://me:hidden-1@example.org/hidden-2?key=hidden-3"
    (tmp_path / "file").write_text(f"{url}\n")
    source = source if source.isupper() else str(tmp_path / source)
    secrets, settings = Secrets(), settings_of("a", {"url_from": source})
    assert url_of(settings, {"THEIR_URL": url}, secrets) == url
    assert "hidden" not in secrets.redact(f"cannot open {url}; GET /hidden-2?key=hidden-3; user me:hidden-1")
    manifest = adapter("a", {"url_from": source})
    assert (*manifest.variables, *manifest.files) == (source,)


def test_a_header_may_have_variables_and_text() -> None:
    secrets, source = Secrets(), "Basic ${USER_ID}:${TOKEN}"
    table = {"url": "https://example.org", "headers_from": {"Authorization": source, "X": "PLAIN"}}
    given = {"USER_ID": "hidden-1", "TOKEN": "hidden-2\n", "PLAIN": "hidden-3"}
    found = headers_of(settings_of("a", table), given, secrets)
    assert found == {"Authorization": "Basic hidden-1:hidden-2", "X": "hidden-3"}
    assert "hidden" not in secrets.redact(f"refused: {found}; user hidden-1")
    manifest = adapter("a", table)
    assert (manifest.variables, manifest.files) == (("USER_ID", "TOKEN", "PLAIN"), ())
    with pytest.raises(SettingProblem, match=r"headers_from\.Authorization: .* no variable TOKEN"):
        headers_of(settings_of("a", table), {"USER_ID": "x"}, secrets)


def test_an_invalid_address_is_not_quoted() -> None:
    with pytest.raises(SettingProblem) as caught:
        url_of(MountSettings(url_from="THEIR_URL"), {"THEIR_URL": "hidden"}, Secrets())
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("table", [{}, {"command": "a", "url_from": "B"}, {"url": "https://a", "url_from": "B"}])
def test_a_server_has_one_command_or_address(table: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set either"):
        settings_of("a", table)
