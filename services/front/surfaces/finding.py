"""Finds operations by the words with which a person or model describes a task.

Ranked by BM25 (Robertson and Zaragoza, 2009) over names, titles and descriptions. If descriptions use another word for
what is asked (`_SAID`), that word counts too, but less than the word itself. References to other operations in a
description ("Not notes (notes_search)") do not count for this operation.

Tools of mounted servers are described by strangers, at any length. So their words are weighed by where they are: name,
title, first sentence, parameters, rest. A task's file names, addresses, times and the like count as such words too
(`_SHAPES`), because descriptions speak of "a file" and not of `config.ini`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from proto.mounts import PREFIX
from proto.operation import Operation
from services.front.surfaces.elsewhere import SAID as _SAID_ELSEWHERE
from services.front.surfaces.examples import examples
from services.front.surfaces.shapes import generalized

_K1, _B = 1.2, 0.75
_NAMED = 2
"""How many times a word of the name counts, compared with a word of the description."""

_OWN_WEIGHT = 0.45
"""Weight of the score of Linckia's own operations, which have more words, compared with a mounted tool's."""

_OTHER_WORD = 0.7
"""Weight of an alternative word; the word itself weighs 1."""

_OTHER_WORD_MOUNTED = 0.8
"""The same for mounted tools, whose descriptions were not written with these tasks in mind."""

_IN_NAME, _IN_TITLE, _IN_FIRST, _IN_PARAMETERS, _IN_REST = 2.0, 1.0, 1.5, 0.5, 0.3
"""Weights of a word of a mounted tool by where it is."""

_WORD = re.compile(r"[a-z]+|[0-9]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_END = re.compile(r"(?<=[^.][.;!?])\s")
_ENDING = re.compile(r"(?<=[a-z]{3})(?:ions?|ies|ing|ed|es|s|e|y)$")
_SENTENCE = re.compile(r"(?<=[.;!?])\s+")
_POINTER = re.compile(r": (?:op )?([-_a-z]+(?:, [-_a-z]+)*)[.;]?$")
"""A reference to other operations at the end of a sentence: `Whole notes: notes_write.`"""
_NAMES = re.compile(r"\([^()]*[a-z][-_][^()]*\)")

_STOP = frozenset(
    _WORD.findall(
        "a about all an and are as at be before but by can could did do does for from had has have help how i if in"
        " into is it its let may me might my need no not of on or our please shall should so some that the their them"
        " then there these they this those to us want was we were what when where which who whose why will with would"
        " you your"
    )
)

# Everyday words and phrases, then the words that descriptions use for them.
_SAID = """
undo, get back, bring back, put back, recover, revert, rescue, retrieve, roll back, rollback, unremove, unerase,
    by mistake, by accident, accidentally, lost -> undelete restore back
remove, erase, discard, wipe, purge, destroy, get rid of, throw away, throw out -> delete
forget, no longer remember -> forget delete
bin, recycle bin, wastebasket, garbage -> trash
locate, seek, discover, look for, look up, hunt -> find search
regex, regexp, matching -> grep pattern expression
retitle, call differently, another name, different name, new name, different title, another title -> rename
relocate, somewhere else, another place -> move
modify, alter, amend, adjust, change, few lines, tweak -> edit change replace set
fix, mend -> correct edit
configure, bump, switch -> set change
paragraph, section, line, sentence, extend -> append edit section
jot, jot down, compose, draft, note down, take notes -> write
new, start -> create write
save, keep, archive, put away -> store add
keep in mind, bear in mind, memorize, memorise, learn -> remember
preference, likes, like, favourite, favorite, prefer, known about -> preferences recall memory
show, view, display, print, see, open, contents, what does it say -> read
show, see, what is in, enumerate -> list
disk, drive, storage, room, big, biggest, huge, large, filling, full, disk usage, heaviest ->
    largest space size disk free
left over, room left, space left, left, remaining -> free
copies, copy, same, identical, redundant, twice, more than once -> duplicate twice
chat, chats, talk, talked, talk about, dialogue, discussion, discuss, discussed, said, thread, session ->
    conversation past chats said
cost, costs, price, spend, spent, money, bill, expensive, dollars, cheap, usage -> cost tokens
page, zettel, wiki, markdown -> note notes markdown
folder, directory, dir -> folder directory folders
picture, photo, image -> pictures image thumbnail
thumbnail, preview -> thumbnail
caller, callers, call, calls, invoke, invokes, used, uses, function, method, class, symbol, dependency, depends, import,
    imports -> calls code symbol imports
connected, linked, refer, refers, reference, references, point, points, relation, related, backlink, backlinks ->
    links link connected backlinks
label, labels, keyword, keywords, categorize -> tag tags
cluster, categories, category, topic, bundle -> group topics
older, earlier, previous, old, history, revision, revisions, past -> version versions snapshot snapshots earlier past
website, web page, internet, online, fetch -> download url web
running, alive, up, down, crash, crashed, died, broken down, healthy, working -> health services died
watch, monitor, track, observe, keep an eye -> follow watch
whenever, automatically, by itself, every time, each new, automate, trigger, schedule, rule, rules -> plan rule
config, configuration, settings file, compose file, yml -> yaml
explanation, remark, remarks, comment -> comments
continue, go on, pick up, carry on -> resume
validate, valid, check, verify -> validate check verify
dead, dangling, broken -> broken
progress, how far, how long -> progress
abort, halt, kill, stop -> cancel stop
everywhere, anywhere, all places, not sure where -> everywhere
grew, grown, growth, shrank, bigger -> grew scans
list files, list the files, files of, files in, contents of a folder, folder contents, in a folder, ls, dir,
    what is in this folder, entries -> browse list direct entries
happened, happen, going on, did i miss, missed, while i was away, since i left, in my absence, what is new, activity,
    news, since yesterday -> catch up events changed whom
remind, reminder, alarm, timer, tomorrow, later today, in an hour, every day, every morning, daily, hourly, weekly,
    at night, next week -> schedule later once cron
know about me, know of me, about myself, about the user, who am i, my preferences, known of me, remember about ->
    recall memory memories remember preferences
task status, status of a task, status of my task, state of a task, long running, background task,
    background job, job, is it done, done yet, finished yet -> task tasks ended result get
document, documents -> stored documents
source code, source file, source files, codebase, repository -> code files grep
recently, latest, newest -> latest newest
"""


_ABSENT = (
    (r"\b(?:send|write|compose) .*\b(?:e ?-?mail|mail|sms)\b", "nothing sends mail; a mounted server may"),
    (
        r"^(?:run|execute) .*\b(?:shell|command|terminal|bash|script|program|code)\b",
        "nothing runs commands or code; the client or a mounted server may",
    ),
    (r"\b(?:search|google) .*\b(?:web|internet)\b", "nothing searches the web; download fetches an address"),
    (r"^git (?:commit|push|pull|checkout|merge|rebase)\b", "nothing changes git repositories; a mounted server may"),
)
"""What people ask for that no operation of Linckia does, as patterns, and what to say."""


def absent(words: str) -> str:
    """Return what to say of a task that no operation does; empty if one may."""
    asked = " ".join(words.lower().split())
    return next((said for pattern, said in _ABSENT if re.search(pattern, asked)), "")


def _terms(text: str) -> list[str]:
    return [_ENDING.sub("", word) for word in _WORD.findall(text.lower()) if word not in _STOP]


@lru_cache(maxsize=2)
def _thesaurus(said: str) -> tuple[Mapping[str, frozenset[str]], Mapping[str, frozenset[str]]]:
    """Map phrases (longest first) and single stems to the stems that descriptions use for them."""
    phrases: dict[str, set[str]] = {}
    alike: dict[str, set[str]] = {}
    for line in said.replace("\n    ", " ").strip().splitlines():
        everyday, _, described = line.partition("->")
        for each in (" ".join(part.split()) for part in everyday.split(",")):
            where, key = (phrases, each) if " " in each else (alike, _terms(each)[0])
            where.setdefault(key, set()).update(_terms(described))
    ordered = sorted(phrases, key=lambda each: -len(each))
    return {each: frozenset(phrases[each]) for each in ordered}, {key: frozenset(alike[key]) for key in alike}


def _asked(words: str, said: str) -> list[tuple[str, frozenset[str]]]:
    """Return the stems of a query, each with its alternatives; a phrase has alternatives only."""
    phrases, alike = _thesaurus(said)
    words = " ".join(words.lower().split())
    asked: list[tuple[str, frozenset[str]]] = []
    for phrase, described in phrases.items():
        words, times = re.subn(rf"\b{re.escape(phrase)}\b", " ", words)
        asked += [("", described)] if times else []
    return asked + [(term, alike.get(term, frozenset())) for term in dict.fromkeys(_terms(words))]


def is_mounted(operation: Operation[object]) -> bool:
    """Return whether it is a tool of a mounted server."""
    return operation.service.startswith(PREFIX)


def split_name(name: str) -> str:
    """Return the words of a name: `getPull_request` becomes `get Pull request`."""
    return " ".join(_PART.findall(name))


def first_sentence(text: str) -> str:
    """Return the first sentence of a description, on one line."""
    return _END.split(" ".join(text[:2000].split()), maxsplit=1)[0]


def parameters_of(schema: object) -> Mapping[str, object]:
    """Return the properties of a schema of a stranger, who may have written anything."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}


def _mounted_text(operation: Operation[object]) -> dict[str, float]:
    """Return the stems by which a mounted tool is found, each with its weight."""
    parameters = parameters_of(operation.input_schema)
    described = [
        each["description"] for each in parameters.values() if isinstance(each, dict) and "description" in each
    ]
    first = first_sentence(operation.description)
    rest = " ".join(operation.description[:2000].split())[len(first) :]
    fields = (
        (_IN_NAME, split_name(operation.name)),
        (_IN_TITLE, split_name(operation.title)),
        (_IN_FIRST, first),
        (_IN_PARAMETERS, " ".join(map(split_name, parameters))),
        (_IN_REST, f"{rest} {' '.join(each for each in described if isinstance(each, str))[:2000]}"),
    )
    found: dict[str, float] = {}
    for weight, words in fields:
        # A word repeated within one field says no more about the tool.
        for term in dict.fromkeys(_terms(words)):
            found[term] = found.get(term, 0.0) + weight
    return found


def _text(name: str, operation: Operation[object], names: frozenset[str]) -> Mapping[str, float]:
    """Return the stems by which an operation is found; `names` are those of all operations."""
    if is_mounted(operation):
        return _mounted_text(operation)
    own = []
    for sentence in _SENTENCE.split(" ".join(operation.description.split())):
        pointer = _POINTER.search(sentence)
        if not (sentence.startswith("Not ") or (pointer is not None and set(pointer[1].split(", ")) <= names)):
            own.append(_NAMES.sub(" ", sentence))
    asked = examples().get(operation.name, ())
    return Counter(_terms(f"{f'{name} {operation.title} ' * _NAMED}{' '.join(own)} {' '.join(asked)}"))


def _postings(texts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return for each stem the operations that have it, and what it scores there."""
    count = len(texts)
    found = Counter(term for text in texts.values() for term in text)
    mean = sum(sum(text.values()) for text in texts.values()) / (count or 1)
    postings: dict[str, dict[str, float]] = {}
    for name, text in texts.items():
        length = _K1 * (1 - _B + _B * sum(text.values()) / mean)
        for term, times in text.items():
            rarity = math.log(1 + (count - found[term] + 0.5) / (found[term] + 0.5))
            postings.setdefault(term, {})[name] = rarity * times * (_K1 + 1) / (times + length)
    return postings


class Index:
    """Operations by name, searchable by words."""

    def __init__(self, operations: Mapping[str, Operation[object]]) -> None:
        names = frozenset(operations).union(op.name for op in operations.values())
        texts = {name: _text(name, op, names) for name, op in operations.items()}
        self._order = {name: number for number, name in enumerate(operations)}
        mounted = {name for name in texts if is_mounted(operations[name])}
        self._own = _postings({name: text for name, text in texts.items() if name not in mounted})
        self._mounted = _postings({name: texts[name] for name in mounted})

    def ranked(self, words: str) -> list[str]:
        """Return the names of operations that match any of the words or an alternative, best first."""
        scores = self.scores(words)
        return sorted(scores, key=lambda name: (-scores[name], self._order[name]))

    def scores(self, words: str) -> dict[str, float]:
        """Return the operations that match any of the words or an alternative, each with its score."""
        scores: dict[str, float] = {}
        for group, asked, weight in (
            (self._own, _asked(words, _SAID), _OTHER_WORD),
            (self._mounted, _asked(generalized(words), _SAID_ELSEWHERE), _OTHER_WORD_MOUNTED),
        ):
            for term, others in asked if group else ():
                best: dict[str, float] = {}
                for each, factor in ((term, 1.0), *((other, weight) for other in others)):
                    for name, score in group.get(each, {}).items():
                        best[name] = max(best.get(name, 0.0), factor * score)
                for name, score in best.items():
                    scores[name] = scores.get(name, 0.0) + score * (_OWN_WEIGHT if group is self._own else 1.0)
        return scores
