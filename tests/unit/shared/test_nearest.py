"""The line that is most like a text that was looked for in vain."""

from __future__ import annotations

import time

from services.shared.text.nearest import nearest_line

TEXT = "def read(path):\n    return open(path)\n\ndef write(path, data):\n    open(path, 'w').write(data)\n"


def test_the_nearest_line_comes_with_its_number() -> None:
    assert nearest_line(TEXT, "def wirte(path, data):") == "; line 4 is nearest: 'def write(path, data):'"
    assert nearest_line(TEXT, "completely different words") == ""
    assert nearest_line(TEXT, "\n\n") == ""
    assert nearest_line("", "x") == ""


def test_of_several_lines_the_first_that_does_not_exist_is_compared() -> None:
    wanted = "def write(path, data):\n    open(path, 'wb').write(data)"
    said = nearest_line(TEXT, wanted)
    assert said.startswith("; line 5 is nearest to its line ")
    assert said.endswith(": \"open(path, 'w').write(data)\"")
    # All lines exist, but not in this order.
    assert "line 4 is nearest" in nearest_line(TEXT, "def write(path, data):\n    return open(path)")


def test_a_large_text_is_searched_for_a_limited_time_and_shown_shortly() -> None:
    text = "\n".join(f"{n} some words that are like the others but not equal to them" for n in range(200_000))
    began = time.monotonic()
    said = nearest_line(text, "199999 some wrods that are like the others but not equal to them" * 3)
    assert time.monotonic() - began < 2
    assert len(said) < 300
    assert len(nearest_line("x" * 10_000, "y" + "x" * 10_000)) < 300
