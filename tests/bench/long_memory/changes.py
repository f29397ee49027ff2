"""Facts that change over months, worded as before or as news, and questions about today and about a day in between.

An agent remembers each statement at its time. `memory_add` names earlier ones that it may replace, and the agent says
so for the one that it does replace, which it knows. So this measures whether the right one is named, and what is
recalled afterwards; beside it, the same without a word about what replaces what.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench.long_memory.sessions import COLLECTED, DAYS, NOW, SUBJECTS

PEOPLE = ("Kaja", "Levin", "Mirela", "Nils", "Oksana", "Pavel", "Quirin", "Romy", "Stellan", "Tilda")
CHANGES = 6
"""Subjects of each person that change."""

AS_NEWS = {
    "{p} lives in {}": ("{p} has moved to {}", "{p} is now at home in {}"),
    "{p} works at {}": ("{p} has a new job at {}", "{p} left the old company and joined {}"),
    "{p}'s dog is called {}": ("{p}'s dog has been renamed {}", "{p}'s new dog answers to {}"),
    "{p} drives a {}": ("{p} now has a {} as a car", "{p} sold the old car and got a {}"),
    "{p} is allergic to {}": ("After a new test, {p} must avoid {} instead", "{p} now reacts to {} in food"),
    "{p}'s sister studies {}": ("{p}'s sister has switched to {}", "{p}'s sister gave up and enrolled in {}"),
    "{p} is learning to play the {}": ("{p} has switched to the {}", "{p} takes lessons on the {} now"),
    "{p}'s manager is {}": ("{p} now reports to {}", "{p} has a new boss: {}"),
    "{p}'s dentist is {}": ("{p} has changed to the practice of {}", "{p}'s new dentist is {}"),
    "{p} banks with {}": ("{p} has moved all accounts to {}", "{p}'s new bank is {}"),
}


@dataclass(frozen=True)
class Statement:
    """What an agent remembers at a time; `follows` is what it replaces, `wording` how: "as before", "as news" or ""."""

    text: str
    at: datetime.datetime
    follows: Statement | None = None
    wording: str = ""


@dataclass(frozen=True)
class Asked:
    """A question; `right` is the one statement that holds then, `wrong` are those that do not."""

    kind: str
    text: str
    right: Statement
    wrong: frozenset[str]
    as_of: str | None = None


@dataclass
class Changes:
    statements: list[Statement] = field(default_factory=list)
    questions: list[Asked] = field(default_factory=list)


def made(seed: int) -> Changes:
    """Return the statements of all people for `seed`, oldest first, with questions about them."""
    rng = random.Random(f"changes {seed}")
    changes = Changes()
    for name in PEOPLE:
        for subject in rng.sample(SUBJECTS, CHANGES):
            said: list[Statement] = []
            values = rng.sample(subject.values, rng.choice((2, 3)))
            for value, at in zip(values, _days(rng, len(values)), strict=True):
                wording = rng.choice(("as before", "as news")) if said else ""
                words = rng.choice(AS_NEWS[subject.statement]) if wording == "as news" else subject.statement
                said.append(Statement(words.format(value, p=name), at, said[-1] if said else None, wording))
            changes.statements += said
            changes.questions += _questions(rng, subject.question.format(p=name), said)
        for each in rng.sample(COLLECTED, 3):
            for value, at in zip(rng.sample(each.values, 3), _days(rng, 3), strict=True):
                changes.statements.append(Statement(each.statement.format(value, p=name), at))
    changes.statements.sort(key=lambda one: one.at)
    return changes


def _questions(rng: random.Random, text: str, said: list[Statement]) -> Iterator[Asked]:
    for place, one in enumerate(said):
        others = frozenset(other.text for other in said if other is not one)
        if place == len(said) - 1:
            yield Asked("today", text, one, others)
        else:
            day = one.at + (said[place + 1].at - one.at) * rng.uniform(0.1, 0.9)
            yield Asked("as of a day", text, one, others, f"{day:%Y-%m-%dT%H:%M:%SZ}")


def _days(rng: random.Random, count: int) -> list[datetime.datetime]:
    """Return moments in order, at least a week apart."""
    weeks = sorted(rng.sample(range(1, DAYS // 14), count), reverse=True)
    return [NOW - datetime.timedelta(weeks=2 * week, hours=rng.randint(1, 100)) for week in weeks]
