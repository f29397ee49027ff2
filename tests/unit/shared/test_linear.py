"""No text and no pattern from outside costs more than in proportion to its length: each reader, and what once made it
explode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from services.decode.symbols import parse as parse_code
from services.decode.text.documents import text_of
from services.documents.store import globs
from services.documents.text.passages import passages
from services.knowledge.notes.files import Place
from services.knowledge.notes.frontmatter import split
from services.knowledge.notes.links import pointers
from services.knowledge.notes.tags import tagged
from services.knowledge.search.passages import _pattern
from services.knowledge.search.words import count_words
from services.llm.prompts import _object
from services.retrieve.index.terms import terms
from services.runtime.gitignore import gitignore
from services.shared import ignore_files, literals
from services.shared.models.measure import ROUGH
from services.shared.text.html import plain
from services.shared.text.markdown import outline
from services.transcripts.messages import Stripper
from services.transcripts.redaction import Redactor
from services.yaml import schema
from tests.unit.costs import MOST, growth
from tests.unit.documents import formats


class Case(NamedTuple):
    """A reader, an input of about `n` characters for it, and a size at which the small one takes a millisecond."""

    read: Callable[[Any], object]
    make: Callable[[int], Any]
    size: int = 8000


def times(unit: str, end: str = "") -> Callable[[int], str]:
    return lambda n: unit * (n // len(unit)) + end


_REDACTOR = Redactor()


def _redact(text: str) -> None:
    _REDACTOR._clean.clear()
    _REDACTOR.text(text)


def _note(text: str) -> None:
    front, body = split(text)
    pointers(body, outline(body).code, front, Place("/r", "n.md"))


def _look_for(query: str) -> None:
    _pattern.__wrapped__(query).findall("a w1 w2 " * 100)


def _validated(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        schema._expression(pattern).search(text)

    return check


def _document(begin: str = "") -> Callable[[str], object]:
    return lambda text: text_of((begin + text).encode(), 600.0)


def _word(text: str) -> None:
    text_of(formats.docx(text), 600.0)


_PARTS = "Content-Type: multipart/mixed; boundary=x\n\n"

CASES = {
    "mails in a box": Case(_document(), times("From a\n\n"), 2000),
    "heads of mail": Case(_document("A: b\n"), times("A: b\n"), 8000),
    "parts of mail": Case(_document(_PARTS), times("--x\n\na\n"), 3000),
    "parts of mail that do not end": Case(_document(_PARTS), times("--x--\n"), 8000),
    "a head of mail": Case(_document("Subject: "), times("=?a?q?b?= "), 8000),
    "paragraphs of Word": Case(_word, times("<w:p><w:t>a</w:t></w:p>"), 20_000),
    "cells of Word": Case(_word, times("<w:tr><w:tc><w:p>"), 8000),
    "headings of HTML": Case(plain, times("<h1>"), 20_000),
    "headings of blanks": Case(plain, times("<h1>" + " " * 60), 20_000),
    **{
        f"redaction: {name}": Case(_redact, make, size)
        for name, make, size in (
            ("token=", times("token="), 4000),
            ("token= in quotes", times('token=aaaaaaaa"'), 8000),
            ("token=a", times("token=aaaaaaaa "), 8000),
            ("token= in code", times("token=aaaa.1aaa("), 8000),
            ("quotes", times("token='a\""), 8000),
            ("a key begins", times("-----BEGIN "), 4000),
            ("keys begin", times('-----BEGIN PRIVATE KEY-----"'), 8000),
            ("keys begin and end", times('-----BEGIN PRIVATE KEY-----"-----END PRIVATE KEY-----'), 8000),
            ("keys of capitals", times("-----BEGIN " + "AAAA " * 50), 8000),
            ("bearer", times("bearer "), 8000),
            ("bearer in a word", times("bearer aaaaaaaaaaaaaaaaaaaa."), 8000),
            ("jwt", times("eyJaaaaaaaa.-"), 8000),
            ("login", times("login a "), 8000),
            ("addresses", times("a://b:"), 8000),
            ("spaces", times("token" + " " * 500), 8000),
        )
    },
    "tags of agents": Case(Stripper(), times("<user_info>", "</x>"), 20_000),
    "tags of agents that end": Case(Stripper(), times("<user_info><INSTRUCTIONS></user_info>"), 20_000),
    "thoughts of a model": Case(lambda text: _object(text + "{}"), times("<Think><reasoning>"), 20_000),
    "globs of folders": Case(globs.matcher(["**/" * 25 + "x"]), times("a/", "y"), 4000),
    "globs of stars": Case(globs.matcher(["*a" * 30 + "*b"]), times("a"), 4000),
    "ignore files of folders": Case(gitignore(["**/" * 25 + "x"]).check_file, times("a/", "y"), 2000),
    "ignore files of stars": Case(gitignore(["*a" * 30 + "*b"]).check_file, times("a"), 4000),
    "many patterns to ignore": Case(ignore_files._spec.__wrapped__, times("*a*b\n"), 1000),
    "patterns of a schema": Case(_validated("^(a+)+$"), times("a", "b"), 20_000),
    "equal items": Case(schema._unique, lambda n: [[i] if i % 2 else i for i in range(n)], 4000),
    "literals of a pattern": Case(literals.trigrams_of, times("["), 400),
    "literals of properties": Case(literals.trigrams_of, times("\\p{"), 400),
    "literals of classes": Case(literals.trigrams_of, times("[:a"), 400),
    "literals of alternatives": Case(literals.trigrams_of, times("(abcd|efgh)"), 400),
    "literals of runs": Case(literals.parts_of, times("abc.*"), 400),
    **{
        f"note: {name}": Case(_note, make, size)
        for name, make, size in (
            ("a tag of blanks", times(" "), 4000),
            ("a tag", lambda n: "[tag:" + " " * n, 4000),
            ("comments of tags", times("<!-- tags: a -->"), 8000),
            ("comments of tags within each other", times("<!-- tags: ", "-->"), 8000),
            ("relations", lambda n: "<!-- tags: [" + "a " * n + "-->", 4000),
            ("fragments", lambda n: f'---\nfollows: "{"#a" * (n // 2)}\\nx"\n---\n', 4000),
            ("wiki links", times("[[a|"), 8000),
            ("links", times("](<"), 8000),
            ("links in brackets", times("](a("), 8000),
            ("definitions", times("[a]: ", "\n"), 8000),
            ("backticks", lambda n: " ".join("`" * (i % 50 + 1) for i in range(n // 25)), 8000),
            ("emphasis in headings", times("# " + "*a" * 100 + "\n"), 8000),
            ("quotes", times(">"), 4000),
            ("lists", times("- "), 4000),
            ("front matter", times("---\na: [\n"), 4000),
        )
    },
    "tags added to a note": Case(lambda text: tagged(text, ["x"]), lambda n: b"<!-- tags: a -->" * (n // 16), 8000),
    "a heading of blanks": Case(
        lambda text: passages(text, "text/markdown", "", ROUGH), lambda n: "# a" + " " * n + "b", 20_000
    ),
    "a heading of marks": Case(
        lambda text: passages(text, "text/markdown", "", ROUGH), lambda n: "# a" + "#" * n + "b", 20_000
    ),
    **{
        f"page: {unit}": Case(plain, times(unit), 20_000)
        for unit in (
            "<",
            "<!--",
            "<!--x--",
            "<a ",
            "<a b=",
            '<a b="',
            "<a b='c=\"",
            "</",
            "<a/",
            "<script>",
            "&#9",
            "\n ",
        )
    },
    "links in Markdown": Case(lambda text: parse_code(text.encode(), ".md"), times("]("), 8000),
    "code in Markdown": Case(lambda text: parse_code(text.encode(), ".md"), times("```\n~~~\n`"), 8000),
    "words": Case(count_words, times("a'_-"), 8000),
    "terms": Case(terms, times("AAs."), 8000),
    "a passage": Case(_look_for, lambda n: " ".join(f"w{i}x" for i in range(n)), 400),
}


@pytest.mark.parametrize("name", CASES)
def test_each_function_takes_time_in_proportion_to_the_length(name: str) -> None:
    case = CASES[name]
    assert growth(case.read, case.make, case.size) < MOST
