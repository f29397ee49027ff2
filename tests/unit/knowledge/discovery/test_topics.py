"""What notes have in common: sentences with their lines, the nearest two of two notes, labels of clusters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from proto.ops.embed import EmbedResult, pack
from proto.ops.retrieve import Pair
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import parse
from services.knowledge.search import duplicates, gaps, labels
from services.knowledge.search.topics import communities, joined
from services.knowledge.search.words import Sentence, commonplaces, nearest, sentences, unpacked
from services.shared.models.measure import ROUGH

NOTE = """---
title: Pumps
---
# Pumps

A pump moves water
from the well to the tank. It needs *no* oil, see [the manual](manual.md)!

- [ ] Look at the valve once a month, at least.
```
this is code, and no sentence of the note at all
```
| a table | is not a sentence of the note either |
> Quoted words are read like all others are.

会议记录说明了我们上周的决定。第二句话也在这里。
"""


def of(text: str) -> list[Sentence]:
    return list(sentences(parse(text, Place("/r", "n.md"), ROUGH).sections))


def test_sentences_name_the_lines_of_the_file_in_which_they_begin() -> None:
    assert of(NOTE) == [
        (6, "A pump moves water from the well to the tank."),
        (7, "It needs no oil, see the manual!"),
        (9, "Look at the valve once a month, at least."),
        (14, "Quoted words are read like all others are."),
        (16, "会议记录说明了我们上周的决定。"),
    ]


def test_the_nearest_sentences_show_the_common_topic_of_two_notes() -> None:
    first = [Sentence(1, "by the way, see below"), Sentence(2, "pumps of the mine")]
    second = [Sentence(3, "by the way, as above"), Sentence(4, "the pump at the mine"), Sentence(5, "pumping water")]
    at = {"by the way, see below": 90, "by the way, as above": 90, "pumps of the mine": 0, "the pump at the mine": 10}
    angles = at | {"pumping water": -10}

    def unit(angle: float) -> Sequence[float]:
        return math.cos(math.radians(angle)), math.sin(math.radians(angle))

    vectors = {text: unit(angle) for text, angle in angles.items()}
    assert nearest(first, second, vectors) == (first[1], second[1])
    assert nearest(first, second[:1], vectors) == (first[0], second[0])
    assert nearest(first[1:], second[:1], vectors) is None
    assert nearest(first, [], vectors) is None
    # Without all vectors the words decide.
    assert nearest(first, [Sentence(1, "the mine, and its pumps")], vectors) == (
        first[1],
        Sentence(1, "the mine, and its pumps"),
    )


def test_vectors_come_back_by_their_texts() -> None:
    rows = np.array([[1, 0], [0.5, 0.25]], dtype="<f4")
    assert unpacked(["a", "b"], EmbedResult(vectors=pack(rows), fingerprint="")) == {"a": [1, 0], "b": [0.5, 0.25]}


def test_text_repeated_word_for_word_in_several_notes_is_no_topic() -> None:
    form = "Ask the owners of this page whenever you find that something is missing."
    contents = [
        gaps.NoteContent("t", (), (), Counter(), "", (Sentence(1, form), Sentence(2, f"Of {n}."))) for n in range(3)
    ]
    common = commonplaces(each.sentences for each in contents)
    assert common == {form}
    one, other = gaps.compared(contents[0], contents[1], common)
    assert ([each.line for each in one], [each.line for each in other]) == ([2], [2])


def test_likeness_is_the_share_of_the_runs_of_words_of_long_texts_too() -> None:
    short = "one two three four five six seven eight nine ten"
    assert duplicates.likeness(duplicates.runs(short), duplicates.runs(short.upper().replace(" ", "\n"))) == 1
    assert duplicates.likeness(duplicates.runs(short), duplicates.runs(short.replace("ten", "zehn"))) == pytest.approx(
        7 / 8
    )
    assert duplicates.likeness(duplicates.runs("a b"), duplicates.runs("a b")) == 1
    assert duplicates.likeness(duplicates.runs(""), duplicates.runs("")) == 0
    words = [f"w{n}" for n in range(20_000)]
    half = [*words[:10_000], *(f"v{n}" for n in range(10_000))]
    assert abs(duplicates.likeness(duplicates.runs(" ".join(words)), duplicates.runs(" ".join(half))) - 0.5) < 0.1
    assert duplicates.likeness(duplicates.runs(" ".join(words)), duplicates.runs(short)) == 0


def test_labels_are_terms_common_to_a_cluster_in_their_original_spelling() -> None:
    def note(title: str, body: str, *tags: str) -> labels.LabelSource:
        return labels.LabelSource(title, tags, body)

    storage = [
        note("SQLite on disks", "The write-ahead log of SQLite. We use `f(x)` for the following page cache 2026."),
        note(
            "page-cache",
            "# Page\n\nThe page cache keeps pages of SQLite, see [x](https://example.org/zebra-links).",
            "disks",
        ),
        note("Disks", "```\nzebra zebra zebra\n```\nA disk has a page cache, and its pages are synced to the disk."),
    ]
    gardens = [
        note(f"Garden {n}", "Climbing roses, and then climbing roses again. Mulched or not, mulching helps.")
        for n in range(3)
    ]
    first, second, alone = labels.labels([storage, gardens, [note("", "")]], lambda: None)
    assert {"SQLite", "cache", "disk"} >= set(first.split(", ")[:2])
    assert "SQLite" in first
    assert "zebra" not in first
    assert "climbing roses" in second.split(", ")
    assert "garden" in second.split(", ")
    # One stem is one term, and a participle none by itself.
    assert "mulched" not in second
    assert alone == ""


def test_communities_are_those_of_links_and_meaning_together_and_always_the_same() -> None:
    ids = [f"n{n}" for n in range(40)]
    near = [Pair(first=ids[a], second=ids[b], similarity=0.7) for a in range(20) for b in range(a + 1, 20)]
    linked = [(ids[a], ids[b]) for a in range(20, 40) for b in range(a + 1, 40) if (a + b) % 3]
    found = communities(ids, joined(near, linked), lambda: None)
    assert sorted(map(sorted, found)) == sorted([sorted(ids[:20]), sorted(ids[20:])])
    assert found == communities(ids, joined(near[::-1], linked), lambda: None)
    alone = communities(ids, {}, lambda: None)
    assert alone == [[id_] for id_ in sorted(ids)]
