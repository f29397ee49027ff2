"""Every piece of a text is as long as the model reads, stands in the lines it names, and holds no data."""

from __future__ import annotations

import base64
import random
import textwrap

import pytest

from proto.ops.embed import TextKind
from services.documents.text.passages import embedded, passages
from services.embed import weights
from services.embed.tokens import TextTokenizer
from services.embed.weights import resolve
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import parse
from services.shared.models.measure import Measure, estimate, measure
from services.shared.text.cutting import Section, embedded_text, without_data
from services.shared.text.html import plain

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")

MEASURE = measure({})
TOKENIZER = TextTokenizer(resolve(weights.PACKAGED[1]))
CHOICE = random.Random(17)


_SAID = "thermodynamic behaviour of hypersonic boundary layers, as measured in 1957 by the NACA; see fig. 3."


def prose(words: int) -> str:
    said = _SAID.split()
    return " ".join(CHOICE.choice(said) for _ in range(words))


TEXTS = {
    "prose": "\n\n".join(prose(150) for _ in range(20)),
    "one line": prose(4000),
    "code": "\n".join(f"    self._{n}_cache['{n:04x}'] = [x**{n} for x in range({n}) if x % 3]" for n in range(300)),
    "addresses": "\n".join(f"https://example.org/a/{n}/b?c=%20{n}&d[]=({n}),{{{n}}}#e-{n}" for n in range(300)),
    "table": "\n".join("|".join(f" {n * m:.6f} " for m in range(12)) for n in range(200)),
    "chinese": "会议记录说明了我们上周的决定。" * 800,
    "thai": "การประชุมครั้งนี้ตัดสินใจว่าเราจะใช้ปั๊มใหม่" * 200,
    "no spaces": "abcdefghij" * 3000,
    "emoji": "🚀🎉 " * 3000,
    "headings": "\n".join(
        f"{'#' * (1 + n % 6)} Heading number {n} of them all\n\n{prose(n % 70)}\n" for n in range(120)
    ),
    "blank": "\n" * 40 + "a line\n" + "\n" * 300 + "another",
}


def pieces(text: str, title: str, measured: Measure = MEASURE) -> dict[str, list[Section]]:
    return {
        "note": list(parse(f"---\ntitle: {title}\n---\n{text}", Place("/notes", "n.md"), measured).sections),
        "markdown": passages(text, "text/markdown", title, measured),
        "plain": passages(text, "text/plain", title, measured),
    }


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("title", ["t", "a title of a good many words that goes on" * 4])
def test_the_model_reads_all_of_each_piece_with_its_title_and_headings(kind: str, title: str) -> None:
    for found in pieces(TEXTS[kind], title).values():
        texts = [embedded_text(title, " > ".join(piece.path), piece.text) for piece in found]
        assert TOKENIZER.encode(texts, TextKind.PASSAGE).truncated == []


@pytest.mark.parametrize("kind", TEXTS)
def test_pieces_contain_the_text_of_the_lines_they_name(kind: str) -> None:
    text = TEXTS[kind]
    lines = text.split("\n")
    for kind_of, found in pieces(text, "t").items():
        before = 3 if kind_of == "note" else 0
        assert "".join("".join(piece.text for piece in found).split()) == "".join(text.split())
        for piece in found:
            own = piece.text.split("\n")
            assert len(own) == piece.last - piece.first + 1
            assert all(said.strip() in line for said, line in zip(own, lines[piece.first - 1 - before :], strict=False))
            assert own[0].strip()


def test_pieces_fill_other_models_windows_and_never_exceed_them() -> None:
    for window in (64, 128, 502):
        small = Measure(window, "", lambda: MEASURE._count)
        for found in pieces(TEXTS["prose"], "t", small).values():
            sizes = [small(embedded_text("t", " > ".join(piece.path), piece.text)) for piece in found]
            assert max(sizes) <= window
            assert sum(sizes) / len(sizes) > window / 2


def test_a_single_first_line_is_the_title_of_all_pieces() -> None:
    title = "Heat transfer in slip flow at low densities"
    found = passages(f"\n{title}\n\n{TEXTS['prose']}", "text/plain; charset=utf-8", "n.txt", MEASURE)
    assert len(found) > 2
    assert {piece.path for piece in found} == {(title,)}
    page = passages(plain(f"<title>{title}</title><p>{TEXTS['prose']}</p>"), "text/html", "n.html", MEASURE)
    assert {piece.path for piece in page} == {(title,)}
    for text, mime in (
        (f"{title}\n{TEXTS['prose']}", "text/plain"),
        (f"{'a long line ' * 30}\n\n{TEXTS['prose']}", "text/plain"),
        (f"import os\n\n{TEXTS['prose']}", "text/x-python"),
        ("one line", "text/plain"),
        ("", "text/plain"),
    ):
        assert {piece.path for piece in passages(text, mime, "n.txt", MEASURE)} <= {()}


CHANCE = random.Random(7)


def test_a_line_of_data_is_recognized_by_the_lines_before_it() -> None:
    few_changes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ" + "aB1cD2" * 3 + "klmnopqrstuvwxyzKLMNOPQRSTUVWXYZ"
    data = base64.b64encode(random.Random(1).randbytes(57)).decode()
    assert without_data([data, few_changes])[0][1] == ""
    assert without_data([few_changes])[0] == [few_changes]


def test_a_long_text_gets_vectors_throughout_and_a_table_only_some() -> None:
    code = "\n".join(f"def f{n}(a):\n    return a + {n}\n" for n in range(4000))
    count = len(passages(code, "text/x-python", "f.py", MEASURE))
    assert count > 200
    assert embedded(code, "text/x-python", count) == count
    assert embedded(code, "text/csv", count) == embedded("x" * 5000, "text/javascript", count) == 64


@pytest.mark.parametrize(
    "data",
    [
        base64.b64encode(CHANCE.randbytes(3000)).decode(),
        "\n".join(textwrap.wrap(base64.b64encode(CHANCE.randbytes(3000)).decode(), 76)),
        CHANCE.randbytes(2000).hex(),
        "3" * 2000,
    ],
    ids=["base64", "lines of base64", "hexadecimal", "digits"],
)
def test_data_is_left_out_and_the_text_around_it_is_not(data: str) -> None:
    text = f"# Picture\n\nBefore it.\n\n![x](data:image/png;base64,\n{data}\n)\n\nAfter it the zebra.\n"
    note = parse(text, Place("/notes", "n.md"), MEASURE)
    assert "characters of data" in (note.problem or "")
    (section,) = note.sections
    assert (section.first, section.last) == (1, text.count("\n"))
    assert section.text.split("\n")[-1] == "After it the zebra."
    read = embedded_text("n", "", section.text)
    assert data[:40] not in read
    assert len(read) < 200
    assert data[:40] in section.text


@pytest.mark.parametrize(
    "line",
    [
        "services/retrieve/a_very_long_name_of_a_module_that_somebody_wrote/and_another_one_beside_it.py",
        "AbstractSingletonProxyFactoryBeanConfigurationManagerInitializerWithLoggingAspect",
        "==============================================================================",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "-" * 200,
    ],
)
def test_long_names_paths_and_rules_do_not_count_as_data(line: str) -> None:
    assert without_data([line]) == ([line], 0)


@pytest.mark.parametrize("kind", TEXTS)
def test_the_estimate_without_a_model_is_never_too_low(kind: str) -> None:
    for line in TEXTS[kind].split("\n")[:50]:
        assert estimate(line[:2000]) >= MEASURE._count(line[:2000])


def test_without_a_model_texts_are_cut_by_the_estimate() -> None:
    measured = measure({"embedder": {"model": "/nowhere"}})
    assert measured.signature.startswith("estimate")
    assert measured.signature != MEASURE.signature
    for found in pieces(TEXTS["prose"], "t", measured).values():
        texts = [embedded_text("t", " > ".join(piece.path), piece.text) for piece in found]
        assert TOKENIZER.encode(texts, TextKind.PASSAGE).truncated == []
