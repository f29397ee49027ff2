"""A unified diff of two texts that differ in few places, quick on large files: only the part that differs is
compared."""

from difflib import unified_diff
from typing import Final

_CONTEXT: Final = 3


def unified(before: str, after: str, name: str) -> str:
    """The unified diff from `before` to `after`, "" where they are equal. Lines end at LF only, as in other tools."""
    if before == after:
        return ""
    old, new = before.split("\n"), after.split("\n")
    shortest = min(len(old), len(new))
    head = 0
    while head < shortest and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shortest - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    first = max(head - _CONTEXT, 0)
    keep = max(tail - _CONTEXT, 0)
    lines = unified_diff(
        _ended(old, first, len(old) - keep), _ended(new, first, len(new) - keep), name, name, n=_CONTEXT, lineterm="\n"
    )
    out = []
    for line in lines:
        moved = _moved(line, first) if line.startswith("@@") else line
        out.append(moved if moved.endswith("\n") else moved + "\n\\ No newline at end of file\n")
    return "".join(out)


def _ended(lines: list[str], first: int, stop: int) -> list[str]:
    part = [line + "\n" for line in lines[first:stop]]
    if stop == len(lines) and part:
        part[-1] = part[-1][:-1]
        if not part[-1]:
            part.pop()
    return part


def _moved(header: str, by: int) -> str:
    """A hunk's header with its line numbers counted from the file's first line."""
    fields = header.split(" ")
    for index in (1, 2):
        sign, numbers = fields[index][0], fields[index][1:].split(",")
        numbers[0] = str(int(numbers[0]) + by)
        fields[index] = sign + ",".join(numbers)
    return " ".join(fields)
