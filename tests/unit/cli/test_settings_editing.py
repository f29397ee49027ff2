"""The settings as the page shows and changes them: with their sources, checked first, comments kept, secrets hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel.cli.settings.editing import Settings
from kernel.cli.settings.layers import Flags
from kernel.configure.shown_settings import Refused, SettingShown

FILE = """\
# My settings
[events]   # the log
keep_days = 3  # three days

[http]
token = "a-secret-of-some-length-1234567890"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "linckia.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text(FILE)
    return path


def settings(file: Path, environment: dict[str, str] | None = None, **flags: Any) -> Settings:
    return Settings(Flags(data_dir=str(file.parent), **flags), environment or {})


def shown(of: Settings, name: str) -> SettingShown:
    return next(each for each in of.shown() if each.name == name)


def test_each_setting_has_its_source_and_what_it_does(file: Path) -> None:
    found = settings(file, {"LINCKIA_STANDBYS": "false", "LINCKIA_SERVICES__FETCH__TIMEOUT_S": "9"}, log_level="debug")
    days, standbys, level = (shown(found, name) for name in ("events.keep_days", "standbys", "log_level"))
    assert (days.value, days.default, days.source, days.where) == (3, 7, "file", f"{file}, line 3")
    assert (days.kind, days.acts, days.text) == ("integer", "events", "How long events are kept")
    assert (standbys.value, standbys.source, standbys.where) == (False, "environment", "LINCKIA_STANDBYS")
    assert (level.value, level.source, level.where, level.acts) == ("debug", "command line", "--log-level", "kernel")
    assert shown(found, "services.fetch.timeout_s").value == 9
    assert shown(found, "http.port").source == "default"
    assert all(each.text for each in found.shown() if each.name != "http.oauth.algorithms")


def test_no_secret_is_shown(file: Path) -> None:
    assert "a-secret" not in str(settings(file).shown())
    assert shown(settings(file), "http.token").is_secret


def test_a_change_keeps_comments_and_the_default_returns(file: Path) -> None:
    found, config = settings(file).change("events.keep_days", 5, reset=False)
    assert (found.value, found.where) == (5, f"{file}, line 3")
    assert config.services["events"]["keep_days"] == 5
    assert file.read_text() == FILE.replace("keep_days = 3", "keep_days = 5")
    settings(file).change("events.keep_days", None, reset=True)
    assert shown(settings(file), "events.keep_days").source == "default"
    assert "# My settings" in file.read_text()


@pytest.mark.parametrize(
    ("name", "value", "field", "said"),
    [
        ("events.keep_days", "many", "value", "expected `int`, got `str`"),
        ("events.keep_days", 0, "value", ">= 1"),
        ("fetch.allow", ["not a host"], "value", "is not a host, an address or a network"),
        ("http.port", "x", "value", "expected `int | null`, got `str`"),
        ("roots", ["/there/is/none"], "value", "does not exist"),
        ("backup.every", "2h", "value", "`to`"),
        ("services.embed.workers", 99_999, "value", "must be 1 to 1000, or auto"),
        ("standbys", True, "name", "environment (LINCKIA_STANDBYS)"),
        ("log_level", "info", "name", "command line (--log-level)"),
        ("evnts.keep_days", 1, "name", "there is no setting"),
    ],
)
def test_a_wrong_value_is_refused_and_nothing_is_written(
    file: Path, name: str, value: object, field: str, said: str
) -> None:
    of = settings(file, {"LINCKIA_STANDBYS": "false"}, log_level="debug")
    with pytest.raises(Refused) as refused:
        of.change(name, value, reset=False)
    assert said in str(refused.value)
    assert refused.value.field == field
    assert file.read_text() == FILE
    assert list(file.parent.iterdir()) == [file]


def test_a_setting_is_written_to_the_table_that_the_file_has(file: Path) -> None:
    file.write_text("[services.events]\nkeep_days = 5\n")
    settings(file).change("events.keep_days", 6, reset=False)
    assert file.read_text() == "[services.events]\nkeep_days = 6\n"
