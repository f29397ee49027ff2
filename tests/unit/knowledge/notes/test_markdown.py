"""What a note's text becomes: title, date, tags, and sections whose lines are the file's."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.knowledge.notes import frontmatter
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import MAX_POINTERS, Note, parse
from services.shared.models.measure import Measure, measure
from services.shared.text.cutting import embedded_text
from services.shared.text.markdown import outline, plain

PLACE = Place("/notes", "guides/My File.md")
MEASURE = measure({})


def note(text: str) -> Note:
    return parse(text, PLACE, MEASURE)


def words(count: int, seed: int = 0) -> str:
    choice = random.Random(seed)
    return " ".join(choice.choice(["alpha", "beta", "gamma", "delta"]) for _ in range(count))


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: From the front\n---\n# Heading\n", "From the front"),
        ("---\ntitle: 'yes'\n---\n", "yes"),
        ("---\ntitle: 2026\n---\n", "2026"),
        ("---\ntitle:\n---\n## Second level first\n", "Second level first"),
        ("Text\n\n# Later heading\n", "Later heading"),
        ("Set\n===\n", "Set"),
        ("# The *big* `code` [link](x.md) **thing** #\n", "The big code link thing"),
        ("#\n\n# Named\n", "Named"),
        ("```\n# not a heading\n```\n", "My File"),
        ("<!--\n# not a heading\n-->\n", "My File"),
        ("- # in a list\n", "My File"),
        ("", "My File"),
    ],
)
def test_title_is_front_matter_else_first_heading_else_file_name(text: str, title: str) -> None:
    assert note(text).title == title


def test_sections_carry_the_lines_of_the_file_from_one_inclusive() -> None:
    text = f"---\ntags: x\n---\n# Guide\n\nIntro.\n\n## Install\n\n{words(150)}\n\n{words(40, 1)}\n"
    text += f"\n## Use\n\n{words(150)}\n"
    sections = note(text).sections
    assert [(s.first, s.last) for s in sections] == [(4, 12), (14, 16)]
    assert [(p.first, p.last, p.path) for p in sections[0].parts] == [
        (4, 6, ("Guide",)),
        (8, 12, ("Guide", "Install")),
    ]
    assert sections[1].path == ("Guide", "Use")


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_line_numbers_count_every_kind_of_line_break(line_break: str) -> None:
    text = line_break.join(["# A", "", words(100), "", "# B", "", words(100)])
    assert [(s.first, s.last) for s in note(text).sections] == [(1, 3), (5, 7)]


def test_long_section_is_split_between_paragraphs() -> None:
    text = "# Long\n\n" + "\n\n".join(words(90, seed) for seed in range(6))
    sections = note(text).sections
    assert [(s.first, s.last) for s in sections] == [(1, 5), (7, 9), (11, 13)]
    assert {s.path for s in sections} == {("Long",)}


def test_paragraph_of_one_long_line_is_split_and_every_piece_names_that_line() -> None:
    text = "# One\n\n" + " ".join(f"Sentence {n} says {words(8, n)}." for n in range(100))
    sections = note(text).sections
    assert len(sections) > 4
    assert {s.last for s in sections} == {3}
    joined = "".join("".join(s.text.removeprefix("# One\n").split()) for s in sections)
    assert joined == "".join(text.split("\n")[2].split())


def test_a_line_of_megabytes_is_counted_a_few_times_not_once_for_each_piece() -> None:
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return MEASURE(text)

    text = "word " * 100_000
    sections = parse(text, PLACE, Measure(MEASURE.window, "", lambda: count)).sections
    assert len(sections) > 400
    assert counted < 5 * len(text)


def test_code_fence_is_never_read_as_headings() -> None:
    text = f"# Real\n\n```sh\n# comment\n{words(100)}\n```\n\n~~~\n## another\n~~~\n"
    assert outline(text).headings == ("Real",)


def test_body_of_fifty_characters_gets_no_vector_and_one_more_does() -> None:
    assert not note("---\ntitle: t\n---\n\n" + "x" * 50 + "\n\n").embed
    assert note("---\ntitle: t\n---\n\n" + "x" * 51 + "\n\n").embed


def test_front_matter_is_found_by_words_as_a_piece_of_its_own() -> None:
    head = note("---\nauthor: Jane\n---\n# T\n").front_matter
    assert head is not None
    assert (head.text, head.first, head.last) == ("author: Jane", 2, 2)


@pytest.mark.parametrize(
    ("source", "seconds"),
    [
        ("2026-01-17", 1768608000.0),
        ("2026-01-17T01:00:00+01:00", 1768608000.0),
        ("'2026-01-17T00:00'", 1768608000.0),
        ("2026-13-45", None),
        ("soon", None),
    ],
)
def test_date_of_front_matter_is_read_or_reported(source: str, seconds: float | None) -> None:
    parsed = note(f"---\ndate: {source}\n---\nText")
    assert parsed.date == seconds
    assert (parsed.problem is None) == (seconds is not None)


@pytest.mark.parametrize(
    "source",
    [
        "a: [" * 15_000,
        "[" * 60_000,
        "- " * 30_000 + "x",
        "? " * 30_000 + "x",
        "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a, *a, *a, *a, *a, *a]\n" for n in range(200)),
        "title: [unclosed",
        "\ttitle: x",
        "- a\n- b",
        "just text",
        "title: {a: {b: c}}",
        "? [a, b]\n: c\ntitle: x",
        "title: *nowhere",
        'title: "\\ud800"',
    ],
)
def test_hostile_or_broken_front_matter_costs_only_itself(source: str) -> None:
    parsed = note(f"---\n{source}\n---\n# Body\n\nText\n")
    assert parsed.sections[-1].path == ("Body",)


def test_broken_front_matter_is_reported_with_its_line() -> None:
    assert note("---\ntitle: ok\ntags: [a\n---\nText").problem == (
        "front matter is not valid YAML (line 4): did not find expected ',' or ']'"
    )


@pytest.mark.parametrize(
    ("source", "key", "values"),
    [
        ("tags: [a, b]", "tags", ["a", "b"]),
        ("tags:\n- a\n- [b, c]", "tags", ["a", "b", "c"]),
        ("Tags: a, b", "tags", ["a, b"]),
        ("references: [[a]]", "references", ["a"]),
        ("references:\n  x: y\nfollows: z", "follows", ["z"]),
        ("a: {b: [c]}\nfollows: z", "follows", ["z"]),
        ("title: 007", "title", ["007"]),
        ("? [x]\n: [y]\ntitle: t", "title", ["t"]),
    ],
)
def test_front_matter_values_are_text_as_written(source: str, key: str, values: list[str]) -> None:
    front, _ = frontmatter.split(f"---\n{source}\n---\n")
    assert (front.values[key], front.problem) == (values, None)


@pytest.mark.parametrize("text", ["---\nno end\n", "text\n---\na: b\n---\n", "--- \n", "----\na: b\n----\n"])
def test_dashes_elsewhere_are_no_front_matter(text: str) -> None:
    assert frontmatter.split(text) == (frontmatter.FrontMatter(), text)


LINES = st.sampled_from(
    ["# One", "## Two", "### Three", "", " ", "text", "- item", "  more", "> quote", "```", "~~~", "    code", "***",
     "a | b", "--|--", "<!-- c", "-->", "<div>", "Set", "===", "---", "[x]: y.md", "[[link]]", "`", "``", words(300),
     "x" * 3000, "1. one", "\t- tab", "|", "\0", "é" * 40]
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(LINES, max_size=40), st.sampled_from(["\n", "\r\n"]))
def test_any_text_is_parsed_and_every_line_with_text_is_in_exactly_one_section(
    lines: list[str], line_break: str
) -> None:
    text = line_break.join(lines)
    parsed = note(text)
    ranges = sorted({(p.first, p.last) for s in parsed.sections for p in s.parts})
    head = parsed.front_matter
    covered = set(range(head.first - 1, head.last + 2)) if head else set()
    if head is None and lines[:1] == ["---"]:
        covered = set(range(1, len(lines) + 1))
    for first, last in ranges:
        covered |= set(range(first, last + 1))
    file_lines = text.replace("\r\n", "\n").split("\n")
    assert {n for n, line in enumerate(file_lines, 1) if line.strip(" \t\0")} <= covered
    for section in parsed.sections:
        assert MEASURE(embedded_text(parsed.title, " > ".join(section.path), section.text)) <= MEASURE.window
        assert section.text.count("\n") == section.last - section.first
        assert all(1 <= p.first <= p.last <= len(file_lines) for p in section.parts)


def test_plain_heading_of_any_marks_is_short_and_quick() -> None:
    assert plain("[[id|Label]] and [[Other]]") == "Label and Other"
    assert len(plain("*" * 100_000)) <= 300


def test_excess_tags_and_links_of_a_note_are_left_out_and_counted() -> None:
    some = note(f"x\n<!-- tags: {', '.join(f't{n}' for n in range(2000))} -->\n")
    assert (len(some.tags), some.tags[-1], some.problem) == (2000, "t1999", None)
    tags = note(f"x\n<!-- tags: {', '.join(f't{n}' for n in range(MAX_POINTERS + 5))} -->\n")
    assert (len(tags.tags), tags.problem) == (10_000, "only the first 10000 of 10005 tags are indexed")
    links = note(" ".join(f"[[n{n}]]" for n in range(MAX_POINTERS + 1)))
    assert (len(links.references), links.problem) == (10_000, "only the first 10000 of 10001 links are indexed")
