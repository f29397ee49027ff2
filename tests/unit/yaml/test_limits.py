"""Hostile input: depth, aliases, size, characters and encodings are bounded with a clear error."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from services.runtime.roots import Roots
from services.yaml.errors import Code, SyntaxFault, YamlError
from services.yaml.files import read_source
from services.yaml.operations import SetEdit
from services.yaml.syntax.parser import MAX_DEPTH, parse
from services.yaml.values import get_at, read_tree, set_at
from services.yaml.yaml_files import YamlFiles


@pytest.mark.parametrize(
    "bomb",
    [
        "[" * 100_000,
        "{" * 100_000,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "- " * 100_000 + "x",
        "? " * 100_000 + "x",
        "a: " + "{a: " * 50_000,
        "".join(" " * depth + "a:\n" for depth in range(MAX_DEPTH + 2)),
        "- " * 1000 + "[" * 1001 + "]" * 1001,
    ],
    ids=lambda bomb: f"{bomb[:4]!r}…{len(bomb)}",
)
def test_a_depth_bomb_is_a_parse_error(bomb: str) -> None:
    with pytest.raises(YamlError, match="deep") as caught:
        read_tree(bomb)
    assert caught.value.code == Code.PARSE


@pytest.mark.slow
def test_the_deepest_file_allowed_is_read_and_edited() -> None:
    depth = MAX_DEPTH - 1
    tree = read_tree("a: " + "[" * depth + "1" + "]" * depth + "\nb: 2\n")
    assert get_at(set_at(tree, "b", "3"), "b") == "3"
    assert get_at(set_at(tree, "a" + "[0]" * depth, "7"), "a" + "[0]" * depth) == "7"


def test_a_set_cannot_make_a_file_too_deep_to_be_read_again() -> None:
    value = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    tree = read_tree("a:\n  b: 1\n")
    with pytest.raises(YamlError):
        set_at(tree, "a.b", value)


def test_billion_laughs_stays_small() -> None:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)]
    tree = read_tree("\n".join(lines) + "\n")
    assert get_at(tree, "a39[9]") == "*a38"
    assert len(tree.stream.events) < 1000
    assert get_at(set_at(tree, "a39[9]", "x"), "a39[9]") == "x"


def cpu_s(text: str) -> float:
    """Processor time of this thread that a parse or its refusal takes, the least of three: another process that keeps
    the machine busy does not count."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        with suppress(SyntaxFault):
            parse(text)
        times.append(time.thread_time() - start)
    return max(min(times), 1e-5)


@pytest.mark.parametrize(
    "unit", ["'", '"', "a ", "- ", "\n", " ", "\t", "? ", ": ", "&a ", "!a ", "#", "\\", "%", "|\n", "a:"]
)
def test_the_work_to_refuse_or_read_grows_with_the_length_only(unit: str) -> None:
    # Linear work grows by 16, quadratic by 256.
    assert cpu_s(unit * 64_000) < 90 * cpu_s(unit * 4_000)


@pytest.mark.slow
def test_wide_collections_as_nested_keys_are_refused_not_copied_at_each_level() -> None:
    wide = "[" + "x," * 30_000 + "]"
    nested = ["[" * depth + wide + ": 1]" * depth for depth in (10, 1000)]
    for text in (*nested, wide + ": 1\n", "[" + wide + ": 1]\n"):
        with pytest.raises(SyntaxFault, match="at most 1024"):
            parse(text)
    # Read once, the wide collection is nearly all the work; copied at each level it would be a hundred times that.
    assert cpu_s(nested[1]) < 20 * cpu_s(nested[0])


def test_a_file_over_the_size_cap_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a: 1\n" + "# x\n" * 100)
    files = YamlFiles(Roots((tmp_path,)), max_bytes=200)
    with pytest.raises(YamlError, match="larger than the limit of 200 bytes") as caught:
        files.get(str(tmp_path / "f.yaml"), "a")
    assert caught.value.code == Code.PARSE


def test_a_set_cannot_make_a_file_too_large_to_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("a: 1\n")
    files = YamlFiles(Roots((tmp_path,)), max_bytes=100)
    with pytest.raises(YamlError, match="larger than 100 bytes"):
        files.edit(str(tmp_path / "f.yaml"), SetEdit("a", "x" * 200))
    assert (tmp_path / "f.yaml").read_text() == "a: 1\n"


@pytest.mark.parametrize("character", ["\x00", "\x01", "\x1f", "\x0b"])
@pytest.mark.parametrize("frame", ["a: {}\n", 'a: "{}"\n', "# {}\n", "a: |\n  {}\n"])
def test_control_characters_are_refused_everywhere(character: str, frame: str) -> None:
    with pytest.raises(SyntaxFault, match="not allowed"):
        parse(frame.replace("{}", f"x{character}"))


@pytest.mark.parametrize("character", ["\x7f", "\x80", "\ufeff", "\uffff"])
def test_some_characters_are_allowed_in_quotes_only(character: str) -> None:
    assert parse(f'a: "x{character}"\n').events[3][2] == f"x{character}"
    with pytest.raises(SyntaxFault, match="is only allowed in quoted scalars"):
        parse(f"a: x{character}y\n")


@pytest.mark.parametrize("raw", [b"a: \xff\n", b"a: \xed\xa0\x80\n", b"\xff\xfea", b"a\0\0\0", b"\0\0\xfe\xff\0\0\0a"])
def test_other_encodings_are_an_input_error(raw: bytes) -> None:
    with pytest.raises(YamlError) as caught:
        read_source(raw)
    assert caught.value.code == Code.IO
