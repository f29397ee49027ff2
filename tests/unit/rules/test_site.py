"""The site builds without a warning, loads nothing from elsewhere, and its reference is complete."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernel.cli.parser import build_parser
from proto.operation import CLIENT
from proto.ops import load
from scripts import documentation

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return documentation.pages()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """Collects the addresses that a browser loads to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loaded = {"script": "src", "img": "src", "iframe": "src", "source": "src"}.get(tag, "")
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            loaded = "href"
        if loaded and (address := given.get(loaded)):
            self.found.append(address)


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    built = list(site.rglob("*.html"))
    assert len(built) > 40
    for page in built:
        loads = Loads()
        loads.feed(page.read_text())
        assert [each for each in loads.found if re.match(r"(https?:)?//", each)] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?https?:|@import\s+['\"]?https?:", style.read_text()) == [], style


@pytest.mark.slow
def test_it_has_the_openapi_document_and_a_search_index(site: Path) -> None:
    assert (site / "reference" / "openapi.json").stat().st_size > 10_000
    assert "kernel_status" in (site / "search" / "search_index.json").read_text()


def test_every_operation_is_described(pages: dict[str, str]) -> None:
    text = pages["reference/tools.md"]
    for op in load().values():
        if op.admits(CLIENT):
            assert f"### `{op.name}`\n\n" in text
            assert op.description.strip(), op.name


def test_every_setting_is_described(pages: dict[str, str]) -> None:
    rows = [line for line in pages["reference/settings.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    assert [row for row in rows if re.search(r"\|\s*\|$", row)] == []


def options(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each, sub in action.choices.items():
                yield from options(sub, f"{name} {each}")
        elif action.help != argparse.SUPPRESS:
            yield name, action


def test_every_option_is_described(pages: dict[str, str]) -> None:
    text = pages["reference/cli.md"]
    for name, action in options(build_parser(), "linckia"):
        assert action.help, f"{name} {action.option_strings or action.dest} has no help"
        assert f"`{name}`" in text or name == "linckia"


def test_every_metric_is_described(pages: dict[str, str]) -> None:
    rows = [line for line in pages["reference/metrics.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    for row in rows:
        name, kind, _, meaning = (cell.strip() for cell in row.strip("|").split("|"))
        assert name.startswith("`linckia_")
        assert kind in ("gauge", "counter", "histogram")
        assert meaning
    known = set(re.findall(r"linckia_\w+", pages["reference/metrics.md"]))
    used = set(re.findall(r"linckia_[a-z_]+", (REPOSITORY / "docs/how-to/prometheus.md").read_text()))
    assert used - known - {"linckia_rules"} == set()
