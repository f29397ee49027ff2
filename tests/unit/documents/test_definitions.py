"""Definitions are found in every language; file names are embedded if they say something."""

from __future__ import annotations

import pytest

from services.documents.text.definitions import outline
from services.documents.text.file_names import tells
from services.documents.text.passages import passages
from services.shared.models.measure import measure

SOURCES = {
    "text/x-python": (
        "import os\n\n\nclass A(B):\n    x = 1\n\n    @property\n    async def read_it(self):\n        return 1\n",
        ["A", "read_it"],
    ),
    "text/x-go": (
        "package x\n\n// Add adds.\nfunc (s *Server) Add(a int) int {\n\treturn a\n}\n\ntype T struct {\n}\n",
        ["Add", "T"],
    ),
    "text/javascript": (
        "export const load = async (url) => {\n  if (url) { return 1; }\n};\nexport default class View {\n}\n"
        "function* walk() {}\n",
        ["load", "View", "walk"],
    ),
    "text/x-typescript": ("export interface Shape {\n}\nexport type Kind = 'a';\n", ["Shape", "Kind"]),
    "text/x-rust": (
        "pub fn cut<T>(a: T) -> u8 {\n}\npub(crate) struct Piece;\n\nimpl Piece {\n    fn new() {}\n}\n",
        ["cut", "Piece", "Piece", "new"],
    ),
    "text/x-c": (
        "static int\nadd(int a)\n{\n  return add(a);\n}\n\nint sub(int a, int b) {\n  if (a) {\n  }\n}\n",
        ["sub"],
    ),
    "text/x-c++": ("std::string Name::text(int wide) const {\n  return text(1);\n}\n", ["Name::text"]),
    "text/x-java": (
        "public class Note {\n  private List<String> tags(int most) {\n    return null;\n  }\n}\n",
        ["Note", "tags"],
    ),
    "text/x-ruby": (
        "module Web\n  class Page\n    def self.show(x)\n    end\n  end\nend\n",
        ["Web", "Page", "self.show"],
    ),
    "text/x-kotlin": ("data class User(val id: Int)\nsuspend fun load(id: Int) = 1\n", ["User", "load"]),
}


@pytest.mark.parametrize("mime", SOURCES)
def test_each_definition_is_a_heading(mime: str) -> None:
    source, names = SOURCES[mime]
    blocks = outline(source.split("\n"), mime)
    assert [block.title for block in blocks if block.level] == names
    # Nothing is left out, and nothing is in two blocks.
    assert [line for block in blocks for line in range(block.first, block.end)] == [*range(source.count("\n") + 1)]


def test_a_definition_keeps_its_comments_and_is_below_those_that_hold_it() -> None:
    long = "\n".join(f"        value_{number} = {number}" for number in range(80))
    first = f"    # Reads one.\n    @cached\n    def first(self):\n{long}\n"
    source = f"class Reader:\n    x = 1\n\n{first}\n    def second(self):\n{long}\n"
    found = passages(source, "text/x-python", "reader.py", measure({}))
    assert {part.path for piece in found for part in piece.parts} == {
        ("Reader",), ("Reader", "first"), ("Reader", "second"),
    }  # fmt: skip
    (begins,) = (piece for piece in found if "def first" in piece.text)
    assert begins.text.index("# Reads one.") < begins.text.index("def first")


def test_without_definitions_a_text_is_cut_as_before() -> None:
    lines = ["x = 1", "", "print(x)"]
    assert [(block.first, block.end, block.level) for block in outline(lines, "text/x-python")] == [(0, 3, 0)]
    assert [block.level for block in outline(["def f(): " + "x" * 500], "text/x-python")] == [0]


@pytest.mark.parametrize(
    "name", ["json_decoder.py", "Vertrag März.docx", "会议.txt", ".bashrc", "getUserById.ts", "a/Invoice 7.pdf"]
)
def test_a_name_with_a_distinctive_word_is_distinctive(name: str) -> None:
    assert tells(name)


@pytest.mark.parametrize(
    "name",
    [
        "17.txt",
        "d00012.py",
        "code_1234.py",
        "IMG_2041.jpg",
        "0b5ecafe-12ab-4c3d.md",
        "document (3).pdf",
        "README.md",
        "",
    ],
)
def test_a_number_a_digest_or_a_general_word_is_not_distinctive(name: str) -> None:
    assert not tells(name)
