# ruff: noqa: RUF001
"""Flags: what hides or misleads is flagged, and ordinary text is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proto.mounts import Flag
from services.mounts.offers.canonical import parse
from services.mounts.offers.flags import MAX_FLAGS, flags_among, flags_of
from services.mounts.offers.hidden import found_in, visible
from services.mounts.offers.lookalikes import disguise_of, pairs, skeleton

DATA = Path(__file__).resolve().parents[2] / "data" / "mounts"


def flags(*tools: dict[str, Any], **others: Any) -> list[Flag]:
    return flags_of(parse(json.dumps({"tools": tools, **others}).encode()))


@pytest.mark.parametrize(
    "letter",
    ["\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u202e", "\u2066", "\u200f", "\U000e0041", "\ue000", "\x1b",
     "\x00", "\x85", "\ufe01", "\U000e0150", "\U00100000", "\u3164", "\u2028"],
)  # fmt: skip
def test_hidden_characters_are_found(letter: str) -> None:
    (said,) = found_in(f"read{letter} the file{letter}")
    assert said.startswith(f"2 times U+{ord(letter):04X}")
    assert letter not in visible(f"a{letter}b")
    assert json.loads(f'"{visible(letter)}"') == letter


@pytest.mark.parametrize(
    "text",
    [
        "Plain text.\n\tIndented\r\n", "Größe, naïve, 日本語, русский, ελληνικά",
        "⚠\ufe0f Warning ✔\ufe0f 1\ufe0f\u20e3 #\ufe0f\u20e3",
        "\U0001f469\u200d\U0001f4bb and \U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0915\u094d\u200d\u0937", "葛\U000e0100", "“Quotes” – dashes…",
    ],
)  # fmt: skip
def test_ordinary_text_has_none(text: str) -> None:
    assert found_in(text) == []


def test_a_message_in_tags_behind_a_flag_is_found() -> None:
    smuggled = "".join(chr(0xE0000 + ord(letter)) for letter in "steal")
    assert found_in(f"\U0001f3f4{smuggled}\U000e007f")
    assert found_in("😀" + "".join(chr(0xE0100 + byte) for byte in b"steal"))


def test_hidden_characters_are_flagged_wherever_a_model_reads() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string", "enum": ["a", "b\u200b"]}, "x\u2060": {}}}
    found = flags({"name": "get\u200b", "title": "T\u202e", "description": "D\ue000", "inputSchema": schema},
                  instructions="I\U000e0041", server_info={"name": "n", "title": "s\x1b[2J"})  # fmt: skip
    assert {flag.kind for flag in found} == {"hidden_characters"}
    assert [flag.where for flag in found] == [
        "tool get\\u200b", "instructions", "server info.title", "tool get\\u200b: title",
        "tool get\\u200b: description",
        "tool get\\u200b: inputSchema.properties.path.enum[1]", "tool get\\u200b: inputSchema.properties.x\\u2060",
    ]  # fmt: skip


def test_overlong_texts_and_names_are_flagged_but_no_icons() -> None:
    icon = {"src": "data:image/png;base64," + "A" * 20_000}
    assert flags({"name": "a", "description": "d" * 4_096, "icons": [icon], "note": "n" * 8_000}) == []
    found = flags({"name": "a" * 129, "description": "d" * 4_097, "note": "n" * 8_001}, instructions="é" * 3_000)
    assert [(flag.kind, flag.detail) for flag in found] == [
        ("overlong", "a name of 129 characters"), ("cut", "4096 of 6000 bytes are shown"),
        ("cut", "4096 of 4097 bytes are shown"), ("overlong", "8001 characters"),
    ]  # fmt: skip


def test_hidden_characters_of_icons_and_metadata_are_flagged() -> None:
    found = flags({"name": "a", "icons": [{"src": "data:\u200b"}], "_meta": {"x": "\u200b"}})
    assert [flag.where for flag in found] == ["tool a: icons[0].src", "tool a: _meta.x"]


def test_names_that_look_like_others_of_the_server_are_flagged() -> None:
    (flag,) = flags({"name": "read_file"}, {"name": "read_fiIe"}, {"name": "write_file"})
    assert (flag.kind, flag.where, flag.detail) == ("look_alike", "tool read_fiIe", "can be mistaken for read_file")
    assert flags({"name": "read_file"}, {"name": "read_files"}, {"name": "get_1"}, {"name": "get_2"}) == []


@pytest.mark.parametrize("name", ["rеad", "сору", "ｒｅａｄ", "reαd", "𝐫ead"])
def test_names_of_disguised_letters_are_flagged(name: str) -> None:
    assert "looks like" in disguise_of(name)
    assert flags({"name": name})[0].kind == "look_alike"


def test_letters_of_two_scripts_are_flagged_and_one_script_or_accents_are_not() -> None:
    assert disguise_of("readЖ") == "mixes letters of Cyrillic and Latin"
    for name in ("größe", "прочитать_файл", "読む_file", "read_file", "αλφάβητο"):
        assert disguise_of(name) == ""


def test_a_skeleton_is_what_a_reader_sees() -> None:
    assert skeleton("read_file") == skeleton("REАD_fi1е") == skeleton("read_fiIe")
    assert skeleton("modern") == skeleton("modem")
    assert skeleton("read_file") != skeleton("read_fire")
    assert pairs(["a", "b", "а"]) == {"а": "a"}


def test_flags_are_bounded() -> None:
    assert len(flags(*({"name": f"t{n}\u200b"} for n in range(1000)))) == MAX_FLAGS


def test_real_servers_have_no_flags() -> None:
    servers = {path.stem: parse(path.read_bytes()) for path in DATA.glob("*.json") if path.stem != "tasks"}
    assert len(servers) >= 9
    tools = {name: parsed.items["tools"] for name, parsed in servers.items()}
    for name, parsed in servers.items():
        others = {other: theirs for other, theirs in tools.items() if other != name}
        assert [*flags_of(parsed), *flags_among(name, tools[name], others)] == [], name
