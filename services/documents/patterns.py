"""Regular expressions as RE2 writes them, read just far enough to know which trigrams a match must have.

What is not understood here only makes the answer weaker: the expression itself is always compiled by the library that
matches it.
"""

from __future__ import annotations

import re

from services.documents.trigrams import (
    ANYTHING,
    MAX_CLASS,
    Info,
    Query,
    alternate,
    concat,
    exactly,
    final,
    in_any_case,
    repeat,
    something,
)

_QUANTITY = re.compile(r"\{(\d+)(,(\d*))?\}")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(-[a-zA-Z]*)?([:)])")
_SETS_CASE = re.compile(r"\(\?[a-zA-Z]*i")
_NAMED = re.compile(r"\?P?<[A-Za-z_]\w*>")
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_NOTHING = frozenset("bBAzZ")
_MAX_DEPTH = 60


class _NotUnderstood(Exception):
    pass


def query_of(pattern: str, *, literal: bool = False, ignore_case: bool = False) -> Query:
    """The trigrams that every line with a match has."""
    if literal:
        found = final(exactly(pattern)) if pattern else ANYTHING
    else:
        found = _read(pattern)
        # For all of the pattern, where it is said of a part of it.
        ignore_case = ignore_case or _SETS_CASE.search(pattern) is not None
    return in_any_case(found) if ignore_case else found


def _read(pattern: str) -> Query:
    try:
        reader = _Reader(pattern)
        info = reader.alternatives(0)
        if reader.at < len(pattern):
            return ANYTHING
        return final(info)
    except (_NotUnderstood, IndexError, ValueError, OverflowError):
        return ANYTHING


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternatives(self, depth: int) -> Info:
        if depth > _MAX_DEPTH:
            raise _NotUnderstood
        info = self._sequence(depth)
        while self.at < len(self.pattern) and self.pattern[self.at] == "|":
            self.at += 1
            info = alternate(info, self._sequence(depth))
        return info

    def _sequence(self, depth: int) -> Info:
        info = exactly("")
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            info = concat(info, self._quantified(self._atom(depth)))
        return info

    def _quantified(self, info: Info) -> Info:
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if char in "*+?":
                self.at += 1
                info = repeat(info, 1 if char == "+" else 0, 1 if char == "?" else None)
            elif char == "{" and (match := _QUANTITY.match(self.pattern, self.at)):
                self.at = match.end()
                least = int(match[1])
                most = least if match[2] is None else int(match[3]) if match[3] else None
                info = repeat(info, least, most)
            else:
                return info
            if self.at < len(self.pattern) and self.pattern[self.at] in "?+":
                # Reluctant or possessive: the same strings, or fewer.
                self.at += 1
        return info

    def _atom(self, depth: int) -> Info:
        char = self.pattern[self.at]
        self.at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == ".":
            return something(empty=False)
        if char in "^$":
            return exactly("")
        if char == "\\":
            return self._escape()
        return exactly(char)

    def _group(self, depth: int) -> Info:
        if self.pattern.startswith("?", self.at):
            if named := _NAMED.match(self.pattern, self.at):
                self.at = named.end()
            elif flags := _FLAGS.match(self.pattern, self.at):
                if set(flags[1] + (flags[2] or "")) - set("imsU-"):
                    raise _NotUnderstood
                self.at = flags.end()
                if flags[3] == ")":
                    return exactly("")
            elif self.pattern.startswith(("?=", "?!", "?<=", "?<!"), self.at):
                # What is looked at is not part of the match: it may say more, which is not needed.
                self.at += 3 if self.pattern.startswith("?<", self.at) else 2
                self.alternatives(depth + 1)
                self._close()
                return exactly("")
            else:
                raise _NotUnderstood
        info = self.alternatives(depth + 1)
        self._close()
        return info

    def _close(self) -> None:
        if self.at >= len(self.pattern) or self.pattern[self.at] != ")":
            raise _NotUnderstood
        self.at += 1

    def _escape(self) -> Info:
        char = self.pattern[self.at]
        self.at += 1
        if char in _NOTHING:
            return exactly("")
        if char in _CONTROL:
            return exactly(_CONTROL[char])
        if char == "x":
            return exactly(self._hexadecimal())
        if char in "dDsSwWhHNRX":
            # Some of these match more than one character.
            return something(empty=False)
        if char.isalnum() or char == "_":
            # A back-reference may be empty; \p, \Q, \C and others are rare.
            raise _NotUnderstood
        return exactly(char)

    def _hexadecimal(self) -> str:
        if self.pattern[self.at] == "{":
            end = self.pattern.index("}", self.at)
            digits = self.pattern[self.at + 1 : end]
            self.at = end + 1
        else:
            digits = self.pattern[self.at : self.at + 2]
            self.at += 2
        return chr(int(digits, 16))

    def _class(self) -> Info:
        start = self.at
        if self.pattern[self.at] == "^":
            self.at += 1
            negated = True
        else:
            negated = False
        chars: set[str] | None = set()
        first = True
        while first or self.pattern[self.at] != "]":
            first = False
            if self.pattern.startswith("[:", self.at):
                self.at = self.pattern.index(":]", self.at) + 2
                chars = None
                continue
            low = self._member()
            high = low
            if self.pattern[self.at] == "-" and self.pattern[self.at + 1] != "]":
                self.at += 1
                high = self._member()
            if low is None or high is None:
                chars = None
            elif chars is not None:
                if ord(high) - ord(low) > MAX_CLASS or ord(high) < ord(low):
                    chars = None
                else:
                    chars |= {chr(code) for code in range(ord(low), ord(high) + 1)}
            if self.at - start > 4096:
                raise _NotUnderstood
        self.at += 1
        if negated or chars is None or len(chars) > MAX_CLASS:
            return something(empty=False)
        return exactly(*sorted(chars))

    def _member(self) -> str | None:
        char = self.pattern[self.at]
        self.at += 1
        if char == "[" and self.pattern[self.at] in "[=.":
            raise _NotUnderstood
        if char != "\\":
            return char
        char = self.pattern[self.at]
        self.at += 1
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x":
            return self._hexadecimal()
        if char == "b":
            return "\b"
        if char in "dDsSwW":
            return None
        if char.isalnum():
            raise _NotUnderstood
        return char
