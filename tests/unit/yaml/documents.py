"""Random YAML documents and values for the property tests: styles, comments, anchors and odd spacing mixed."""

import re

from hypothesis import strategies as st

PLAIN = st.sampled_from(
    ["x", "1", "true", "~", "a b", "http://h/p?q=1", "2026-01-01", "é", "-1", "\U0001f980", "a#b", ":x"]
)
QUOTED = st.sampled_from(["'it''s'", '"q\\n"', "''", '""', '"a: b"', "'# no'", '"x\u2028y\u0085z"'])
FLOW = st.sampled_from(
    ["[]", "{}", "[1, 2]", "{a: 1, b}", '{"k":1}', "[a: 1]", "{ x: [y, {z: 1}] }", "[\n    1,\n    2 ]"]
)
INLINE = st.one_of(PLAIN, QUOTED, FLOW)
KEY = st.sampled_from(["a", "b", "cc", "d-e", "f g", "'q'", '"r"', "1", "k.l", "é"])
COMMENT = st.sampled_from(["", "", "", "  # c", " # d: e", "\t# t"])
GAP = st.sampled_from(["", "", "", "", "\n", "# gap\n", "\n\n  # far\n"])


def _indented(text: str, by: int) -> str:
    return "".join(" " * by + line if line.strip("\r\n") else line for line in re.findall(r"[^\n]*\n|[^\n]+", text))


@st.composite
def block_scalars(draw: st.DrawFn) -> str:
    head = draw(st.sampled_from(["|", ">", "|-", ">-", "|+", "| # h"]))
    lines = draw(st.lists(st.sampled_from(["x", "y  ", " more", "# not", "", "- z", "k: v"]), min_size=1, max_size=4))
    if not lines[0].strip() or lines[0][0] == " ":
        lines[0] = "first"
    return head + "\n" + "".join(f"  {line}\n" if line else "\n" for line in lines)


@st.composite
def mappings(draw: st.DrawFn, depth: int = 0) -> str:
    """A block mapping at column 0, each line ended."""
    keys = draw(st.lists(KEY, min_size=1, max_size=4, unique_by=lambda key: key.strip("'\"")))
    out = []
    for key in keys:
        out.append(draw(GAP) + key + ":" + draw(values(depth)))
    return "".join(out)


@st.composite
def sequences(draw: st.DrawFn, depth: int = 0) -> str:
    """A block sequence at column 0, each line ended."""
    out = []
    for _ in range(draw(st.integers(1, 3))):
        if depth < 3 and draw(st.booleans()):
            # A mapping that begins on the line of its dash.
            rest = "" if draw(st.booleans()) else "  z:" + draw(values(3)).replace("\n  ", "\n    ")
            out.append("- y:" + draw(values(3)).replace("\n  ", "\n    ") + rest)
        else:
            out.append("-" + draw(values(depth)))
    return "".join(out)


@st.composite
def values(draw: st.DrawFn, depth: int = 0) -> str:
    """What stands behind an indicator, up to and with the last line break."""
    kind = draw(st.integers(0, 9 if depth < 3 else 6))
    comment = draw(COMMENT)
    if kind == 0:
        return comment + "\n"
    if kind == 1:
        return " " + draw(block_scalars())
    if kind <= 6:
        return draw(st.sampled_from([" ", " ", "  ", "\t"])) + draw(INLINE) + comment + "\n"
    collection = draw(mappings(depth + 1) if kind <= 8 else sequences(depth + 1))
    return comment + "\n" + _indented(collection, draw(st.sampled_from([2, 4])))


@st.composite
def documents(draw: st.DrawFn) -> str:
    body = draw(st.one_of(mappings(), sequences()))
    body = draw(st.sampled_from(["", "# top\n\n", "---\n", "\ufeff", "%YAML 1.2\n---\n"])) + body
    body += draw(st.sampled_from(["", "", "\n\n", "# end\n", "...\n", "---\nother: 1\n"]))
    if draw(st.booleans()):
        body = body.rstrip("\n")
    return body.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])))


FRAGMENTS = st.one_of(
    INLINE, block_scalars(), mappings(2), sequences(2),
    st.sampled_from(["x, y", "1}, {b: 2", "x\n- y", "a: 1\nb: 2", "&n 1", "!t x", "*n", "", "# c", "x # c",
        "---\nx", "%x"]),
)  # fmt: skip
