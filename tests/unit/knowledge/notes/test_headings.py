"""Headings are named as they are written or as they read, and a section that is there is never made again."""

from __future__ import annotations

import pytest

from proto.errors import LinckiaError
from services.knowledge.notes.excerpts import part
from services.knowledge.operations.writing import EditNote, SectionText
from services.knowledge.writing.editing import edited


def edit(text: str, heading: str, content: str = "after", *, create: bool = True) -> str:
    params = EditNote(path="x.md", section=SectionText(heading, content, create=create))
    return edited(text, params, str)


SAME = [
    ("## Section B (`a.yaml`)", ["Section B (`a.yaml`)", "Section B (a.yaml)", "## section b (`a.yaml`)"]),
    ("## `a > b` and `c`", ["`a > b` and `c`", "a > b and c"]),
    ("## **Plan** for *May*", ["**Plan** for *May*", "Plan for May", "__Plan__ for _May_", "*Plan for May*"]),
    ("## Client -> Server", ["Client -> Server", "## Client -> Server ##", "client  ->  server"]),
    ("## Inbox > Later", ["Inbox > Later"]),
    ("## A > B > C", ["A > B > C"]),
    ("## [Guide](guide.md \"t\") now", ["[Guide](guide.md \"t\") now", "Guide now"]),
    ("## See [[Some note|that]] & [[x]]", ["See [[Some note|that]] & [[x]]", "See that & x"]),
    ("## <b>Bold</b> &amp; x", ["<b>Bold</b> &amp; x", "Bold & x"]),
    ("## 3 \\* 4 \\# 5", ["3 \\* 4 \\# 5", "3 * 4 # 5"]),
    ("## Cafe\u0301 \u1112\u1161\u11ab", ["Caf\u00e9 \ud55c", "cafe\u0301 \ud55c"]),
    ("## C#", ["C#", "## C#"]),
    ("## Was ist das? #frage", ["Was ist das? #frage"]),
    ("Underlined *so*\n---", ["Underlined *so*", "Underlined so"]),
    ("## Closed ##", ["Closed ##", "Closed", "## Closed ##", "Closed #"]),
    ("### *Closed* # off ###", ["*Closed* # off ###", "Closed # off"]),
    ("C #\n---", ["C #"]),
    ("## x >= y && y <= z", ["x >= y && y <= z"]),
    ("## ~~Old~~ snake_case_name", ["~~Old~~ snake_case_name"]),
    ("## ![logo](l.png) Brand", ["![logo](l.png) Brand", "logo Brand"]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "asked"), [(line, each) for line, names in SAME for each in names])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_heading_is_found_as_written_and_as_it_reads(line: str, asked: str, line_break: str) -> None:
    text = f"# Title\n\n{line}\n\nbefore\n\n## Next\n\nstays\n".replace("\n", line_break)
    assert edit(text, asked) == text.replace("before", "after")
    assert edit(text, f"Title > {asked}") == text.replace("before", "after")
    assert edit(text, asked, f"{line}\n\nafter".replace("\r", "")) == text.replace("before", "after") or "\n" in line
    assert part(text, "", asked).text.replace("\r", "") == f"{line}\n\nbefore\n\n"


@pytest.mark.parametrize(
    "heading",
    [
        "Client -> Server",
        "`a > b`",
        "**Plan**",
        "<i>x</i>",
        "x >= y",
        "C#",
        "[[A|b]]",
        "Closed ##",
        "日本 → 韓国",
        "Cafe\u0301",
    ],
)
def test_a_missing_heading_is_created_once_on_request(heading: str) -> None:
    text = "# Title\n\ntext\n"
    once = edit(text, heading, "one")
    assert once == f"{text}\n## {heading}\n\none\n"
    assert edit(once, heading, "two") == once.replace("one", "two")
    below = edit(text, f"Title > {heading}", "one")
    assert below == f"{text}\n## {heading}\n\none\n"
    assert edit(below, f"Title > {heading}", "two") == below.replace("one", "two")


def test_an_exact_match_of_a_heading_precedes_a_match_of_its_text() -> None:
    text = "## *Plan*\n\n1\n\n## Plan\n\n2\n\n## A > B\n\n3\n\n## A\n\n### B\n\n4\n"
    assert edit(text, "Plan") == text.replace("2", "after")
    assert edit(text, "*Plan*") == text.replace("1", "after")
    assert edit(text, "A > B") == text.replace("3", "after")
    assert edit(text, "## A > ### B") == text.replace("4", "after")


def test_an_ambiguous_heading_is_refused_and_a_heading_path_is_found() -> None:
    text = "# A\n\n## **Log**\n\n1\n\n# A\n\n## Other\n\n2\n\n# B\n\n## *Log*\n\n3\n"
    with pytest.raises(LinckiaError, match="2 headings match 'Log'"):
        edit(text, "Log")
    assert edit(text, "A > Log") == text.replace("1", "after")
    assert edit(text, "A > Other") == text.replace("2", "after")
    assert edit(text, "B>Log") == text.replace("3", "after")


@pytest.mark.parametrize(("heading", "missing"), [("Nine > Ten", "Nine"), ("A > Nine > Ten", "Nine")])
def test_a_section_is_not_made_below_one_that_is_missing(heading: str, missing: str) -> None:
    with pytest.raises(LinckiaError, match=f"section not found: '{missing}'"):
        edit("# A\n", heading)


COMMENTS = [
    "%%\n# Log\n\nhidden\n%%",
    "%% note\n## Log\n\n- [ ] later %%",
    "   %%\nLog\n---\n%% seen",
    "%%\n```\n## Log\n```\n%%",
    "<!--\n# Log\n-->",
    "<!-- off\n\n## Log\n\n%%\n-->",
]


@pytest.mark.parametrize("comment", COMMENTS)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_headings_in_comments_are_ignored(comment: str, line_break: str) -> None:
    text = f"---\na: 1\n---\n# Title\n\n{comment}\n\n## Log\n\nbefore\n\n## Next\n\nstays\n".replace("\n", line_break)
    assert edit(text, "Log", create=False) == text.replace("before", "after")
    assert part(text, "", "Log").text == f"## Log{line_break * 2}before{line_break * 2}"
    with pytest.raises(LinckiaError, match="section not found"):
        edit(text.replace(f"## Log{line_break * 2}before", "before"), "Log", create=False)


@pytest.mark.parametrize(
    "text",
    [
        "# T\n\n50%% of it\n\n## Log\n\nbefore\n\n## End\n\n60%%\n",
        "# T\n\n%% short %%\n\n## Log\n\nbefore\n\n## End\n\n%% short %%\n",
        "# T\n\n```\n%%\n```\n\n## Log\n\nbefore\n\n## End\n\n```\n%%\n```\n",
        "# T\n\n%%\n\n## Log\n\nbefore\n",
        "# T\n\n<!-- %% -->\n%% a %%\n## Log\n\nbefore\n\n## End\n\n~~~~\n~~~\n%%\n~~~~\n",
    ],
)
def test_percent_signs_outside_comments_hide_nothing(text: str) -> None:
    assert "after" in edit(text, "Log", create=False)
    assert edit(text, "Log", create=False) == text.replace("before", "after")


def test_repeated_headings_are_numbered() -> None:
    text = "---\nx: 1\n---\n# A\n\n## Log\n\n1\n\n# A\n\n## Log\n\n2\n\n# B\n\n## Log\n\n3\n\n## Log [2]\n\n4\n"
    said = r"3 headings match 'Log', in lines 6, 12, 18; include the parent heading, `A > B`, or say which: Log\[1\] to"
    with pytest.raises(LinckiaError, match=said):
        edit(text, "Log")
    assert edit(text, "Log[1]") == text.replace("\n1\n", "\nafter\n")
    assert edit(text, "Log[3]") == text.replace("\n3\n", "\nafter\n")
    assert edit(text, "A > Log[2]") == text.replace("\n2\n", "\nafter\n")
    assert edit(text, "A[2] > Log") == text.replace("\n2\n", "\nafter\n")
    assert edit(text, "## B > ## Log") == text.replace("\n3\n", "\nafter\n")
    assert part(text, "", "Log[3]").text == "## Log\n\n3\n\n"
    # A heading that is called so comes first.
    assert edit(text, "Log [2]") == text.replace("\n4\n", "\nafter\n")
    for heading in ("Log[4]", "A > Log[3]"):
        for create in (True, False):
            with pytest.raises(LinckiaError, match=r"only \d headings match"):
                edit(text, heading, create=create)
    assert edit(text, "A[2] > New").endswith(text[text.index("# B") :])
    assert edit("# A\n", "A[2]") == "# A\n\n## A[2]\n\nafter\n"
