"""Settings with comments keep everything but the member that is set or removed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.cli.clients.jsonc import NotJson, member_at, with_member, without_member
from kernel.cli.servers.client_files import plain_json

ENTRY = {"command": "/opt/linckia", "args": ["stdio", "/home/me/nötes"]}
PATH = ("mcpServers", "linckia")

SETTINGS = """\
// My settings, with "quotes" and { brackets }
{
    /* fonts */
    "font": "Fira // Code",
    "mcpServers": {
        "other": {"command": "x", "args": [1, 2.5e3, true, null, ["a", {}],]}, // mine
    },
    "theme": "dark", // last
}
"""


def content(text: str) -> Any:
    return json.loads(plain_json(text.removeprefix("\ufeff")) or "{}")


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "{}", "{ }\n", '{"a": 1}', '{"a": 1,}', '{"mcpServers": {}}\n', '{\n\t"a": {\n\t\t"b": 1\n\t}\n}\n',
        SETTINGS, SETTINGS.replace("\n", "\r\n"), "\ufeff" + SETTINGS, '{"mcpServers": {"linckia": 5, "x": 1}}',
        "// only a comment\n", '{"mcpServers": { /* none yet */ }}',
    ],
)  # fmt: skip
def test_a_member_is_set_and_all_else_stays(text: str) -> None:
    changed = with_member(text, PATH, ENTRY)
    expected = content(text)
    expected.setdefault("mcpServers", {})["linckia"] = ENTRY
    assert content(changed) == expected
    assert member_at(changed, PATH) == ENTRY
    # Whatever is not white space and commas between the parts is kept, in order.
    if member_at(text, PATH) is None and text.strip():
        kept = iter(changed)
        assert all(character in kept for character in text if not character.isspace())
    assert ("\r\n" in changed) == ("\r\n" in text)
    assert "\n\n\n" not in changed
    gone = content(without_member(changed, PATH))
    del expected["mcpServers"]["linckia"]
    assert gone == expected


def test_it_is_indented_as_the_file_is() -> None:
    assert with_member('{\n\t"a": 1\n}\n', PATH, {"command": "x"}) == (
        '{\n\t"a": 1,\n\t"mcpServers": {\n\t\t"linckia": {\n\t\t\t"command": "x"\n\t\t}\n\t}\n}\n'
    )


def test_removal_restores_a_file_that_had_no_such_member() -> None:
    assert without_member(with_member(SETTINGS, PATH, ENTRY), PATH) == SETTINGS


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.sampled_from([None, 2, "\t"]), VALUES)
def test_any_json_stays_the_same_beside_the_member(settings: dict[str, Any], indent: Any, value: Any) -> None:
    settings.pop("mcpServers", None)
    text = json.dumps(settings, indent=indent, ensure_ascii=False)
    changed = with_member(text, PATH, value)
    assert json.loads(changed) == settings | {"mcpServers": {"linckia": value}}
    assert member_at(changed, PATH) == value
    assert json.loads(without_member(changed, ("mcpServers",))) == settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1, column 2: expected a name"),
        ('{\n  "a" 1}', 'line 2, column 7: expected ":"'),
        ('{"a": 1 "b": 2}', 'expected "," or "}"'),
        ('{"a": 1} x', "expected the end of the file"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ("[1]", "the file is not an object"),
        ('{"mcpServers": []}', "mcpServers is not an object"),
        ('{"a": nope}', "expected a value"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_json_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(NotJson, match=says):
        with_member(text, PATH, ENTRY)
