"""Tags in the text and in the front matter, of any script, and nested ones, which their parents find."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.knowledge.notes.files import Place
from services.knowledge.notes.links import with_parents
from services.knowledge.notes.markdown import parse
from services.knowledge.operations.notes import QueryByTags, SearchDocuments
from services.shared.models.measure import ROUGH
from tests.unit.knowledge.rig import notes_service, settled, write


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("about #project/alpha/two and #x_y-z.", ("project/alpha/two", "x_y-z")),
        ("#プロジェクト と#これ、#計画/春 (#日記)", ("プロジェクト", "計画/春", "日記")),
        ("今日は。#会議 だ。「#メモ」 #한국어 #данные/сырые #été #हिन्दी #👩‍💻", 
         ("会議", "メモ", "한국어", "данные/сырые", "été", "हिन्दी", "👩‍💻")),
        ("# Heading\n\n## #Tag in one\n", ("tag",)),
        ("no #1 #2024 issue#3 a#b [x](#part) [[#Part]] [[n#Part]] https://e.org/#top &#39; <a href=\"#x\"> \\#not", ()),
        ("`#code` and\n\n```\n#include\n```\n\n    #indented\n", ()),
        ("---\ntags: [a/b/c, \"#プロジェクト\", Été]\n---\n#a/b/c/ #a/b/c", ("a/b/c", "プロジェクト", "été")),
        ("---\ntags:\n  - 仕事/会議\n---\n", ("仕事/会議",)),
    ],
)  # fmt: skip
def test_tags_are_read_wherever_they_stand(text: str, tags: tuple[str, ...]) -> None:
    assert parse(text, Place("/r", "n.md"), ROUGH).tags == tags


def test_a_nested_tag_has_its_parents() -> None:
    assert set(with_parents(["a/b/c", "d"])) == {"a/b/c", "a/b", "a", "d"}


async def test_a_parent_finds_its_children_and_no_others(tmp_path: Path, root: Path) -> None:
    write(root, "deep.md", "zebra #area/north/farm\n")
    write(root, "front.md", "---\ntags: [area/south]\n---\nzebra\n")
    write(root, "own.md", "zebra [tag: Area]\n")
    write(root, "other.md", "zebra #areas #north/area #100%\n")
    write(root, "cjk.md", "zebra #プロジェクト/計画\n")

    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 5)

        async def found(*tags: str) -> list[set[str]]:
            by_tags = await bench.call(QueryByTags(tags=list(tags)))
            searched = await bench.call(SearchDocuments(query="zebra", tags=list(tags)))
            return [{note.id for note in by_tags}, {hit.id for hit in searched.results}]

        assert await found("area") == [{"deep", "front", "own"}] * 2
        assert await found("#Area/North") == [{"deep"}] * 2
        assert await found("area/north/farm", "area") == [{"deep"}] * 2
        assert await found("area/nor") == [set()] * 2
        assert await found("プロジェクト") == [{"cjk"}] * 2
        assert await found("プロジェクト/計画") == [{"cjk"}] * 2
        (note,) = await bench.call(QueryByTags(tags=["area/north"]))
        assert note.tags == ["area/north/farm"]
