"""The guides name only files, folders, benchmarks, pages and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
GUIDES = sorted(
    str(page.relative_to(REPOSITORY)) for page in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"))
)

_PATH = re.compile(r"`((?:proto|kernel|services|tests|scripts)/[A-Za-z0-9_./-]*)`")
_BENCH = re.compile(r"`scripts/bench ([a-z_]+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")


@pytest.mark.parametrize("guide", GUIDES)
def test_every_path_that_a_guide_names_is_there(guide: str) -> None:
    text = (REPOSITORY / guide).read_text()
    missing = [path for path in _PATH.findall(text) if "NAME" not in path and not (REPOSITORY / path).exists()]
    assert not missing


@pytest.mark.parametrize("guide", GUIDES)
def test_every_benchmark_that_a_guide_names_is_there(guide: str) -> None:
    text = (REPOSITORY / guide).read_text()
    bench = REPOSITORY / "tests" / "bench"
    missing = [
        name for name in _BENCH.findall(text) if not ((bench / f"{name}.py").exists() or (bench / name).is_dir())
    ]
    assert not missing


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("guide", GUIDES)
def test_every_link_of_a_guide_leads_to_a_page_and_heading(guide: str) -> None:
    page = REPOSITORY / guide
    broken = []
    for target, anchor in _LINK.findall(_INLINE_CODE.sub("", _CODE.sub("", page.read_text()))):
        linked = (page.parent / target) if target else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target + anchor)
    assert broken == []


def test_the_readme_can_be_read_at_once() -> None:
    assert (REPOSITORY / "README.md").read_text().count("\n") <= 250
