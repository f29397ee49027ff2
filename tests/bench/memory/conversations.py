"""Ten synthetic conversations of 300 turns, the statements that an agent would remember, and fifteen questions each.

They are built from templates with a fixed seed, after LoCoMo's kinds of questions (Maharana et al., 2024): about one
fact, a fact that changed later, times, and things never said. Between the facts people talk of other things, some about
the same subjects but without facts. Nothing is real, and templates are easier to find than real speech.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

CONVERSATIONS, TURNS = 10, 300

PEOPLE = (
    "Erik", "Fiona", "Gregor", "Hanna", "Ivan", "Julia", "Karim", "Lena", "Marco", "Nadia", "Oskar", "Paula", "Quentin",
    "Rosa", "Stefan", "Tilda", "Umberto", "Vera", "Walter", "Yasmin",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A fact as said in a turn, remembered and asked about; `{}` is the value, `{p}` the person."""

    said: tuple[str, str]
    """The first wording, and the one after a change."""
    statement: str
    question: str
    before: str
    values: tuple[str, ...]


SUBJECTS = {
    "city": Subject(
        ("We found a flat at last, it is in {} and it has a balcony.", "So the boxes are unpacked: {} is home now."),
        "{p} lives in {}", "Where does {p} live?", "Where did {p} live before?",
        ("Hamburg", "Lisbon", "Oslo", "Toronto", "Krakow", "Leeds", "Nantes", "Graz", "Porto", "Utrecht"),
    ),
    "employer": Subject(
        ("Today I signed the contract with {}, I begin on Monday.", "I quit, you know. {} made me a better offer."),
        "{p} works at {}", "Which company is {p} employed by?", "Who was {p}'s employer before?",
        ("Siemens", "Bosch", "Nokia", "Philips", "Danfoss", "Ericsson", "Alstom", "Vestas", "Nestle", "Airbus"),
    ),
    "dog": Subject(
        ("The puppy has arrived, the children call him {}.", "We had to rename the dog, he listens to {} only."),
        "{p}'s dog is called {}", "What is the name of {p}'s dog?", "What was {p}'s dog called before?",
        ("Rex", "Bello", "Waldo", "Pixel", "Nacho", "Bruno", "Mogli", "Fips", "Archie", "Yoda"),
    ),
    "car": Subject(
        ("Picked up the car this morning, a {}, used but fine.", "The old thing broke down, so now it is a {}."),
        "{p} drives a {}", "What car does {p} have?", "What car did {p} have before?",
        ("Volvo", "Fiat", "Skoda", "Mazda", "Renault", "Toyota", "Saab", "Opel", "Honda", "Peugeot"),
    ),
    "instrument": Subject(
        ("I take lessons now, every Thursday: the {}.", "My teacher left, so I changed to the {}."),
        "{p} is learning to play the {}", "Which instrument does {p} play?", "Which instrument did {p} play before?",
        ("cello", "oboe", "trumpet", "harp", "banjo", "flute", "drums", "viola", "organ", "guitar"),
    ),
    "allergy": Subject(
        ("I cannot eat there: a trace of {} and my throat swells.", "The doctor tested again: it is {} after all."),
        "{p} is allergic to {}", "What must not be in the food when {p} comes to dinner?",
        "What was {p} thought to be allergic to?",
        ("peanuts", "shrimp", "celery", "sesame", "mustard", "walnuts", "soy", "lupins", "eggs", "kiwi"),
    ),
    "subject": Subject(
        ("My sister enrolled, she will study {} in autumn.", "She gave that up after a term, now it is {}."),
        "{p}'s sister studies {}", "What does the sister of {p} study?", "What did {p}'s sister study first?",
        ("law", "chemistry", "geology", "history", "medicine", "physics", "theology", "botany", "economics", "Latin"),
    ),
}  # fmt: skip

EVENTS = (
    ("the marathon", "I registered for the marathon, it is on {}.", "When does {p} run the marathon?"),
    ("the wedding", "We set the date for the wedding: {}.", "On which day is {p}'s wedding?"),
    ("the exam", "They told me when the exam is, on {}.", "When does {p} sit the exam?"),
    ("the operation", "My knee will be done on {}, I hate hospitals.", "When is {p}'s operation?"),
)
MONTHS = ("March", "April", "May", "June", "July", "August", "September", "October")

SMALL_TALK = (
    "Did you see the weather? It rains for the {n}th day in a row.",
    "I watched that series until {n} in the morning, I should not.",
    "The train was {n} minutes late again, and no seat left.",
    "Somebody told me that dogs dream too, they ran in their sleep {n} times.",
    "Cars are so expensive now, the neighbour paid {n} thousand.",
    "My colleague moved offices, {n} boxes, and nothing has labels.",
    "I cooked for {n} people yesterday, most of it is still in the fridge.",
    "There was a concert in the park, {n} minutes of tuning and then rain.",
    "The new phone makes {n} sounds and I do not know what any of them means.",
    "Work was fine. {n} meetings, one decision.",
    "We should see each other again, it has been {n} weeks.",
    "I read {n} pages and remember none of them.",
    "The doctor's waiting room was full, I counted {n} people.",
    "My cousin got married, {n} guests, two cakes.",
    "How do you keep plants alive? I have lost {n} of them.",
    "The city put up {n} new signs and nobody can read them.",
    "Studying was easier when we were young, I had {n} books then.",
    "Ha, that is true. You told me that {n} times.",
    "Do you still have my umbrella? I have bought {n} since.",
    "Let us talk about something else, I have {n} mails to answer.",
)


@dataclass(frozen=True)
class Question:
    """A question; `answer` is None if nothing said answers it."""

    kind: str
    text: str
    answer: str | None


@dataclass
class Conversation:
    """Alternating `turns` of two people, each with its speaker, and `statements` in the order in which they come up."""

    project: str
    turns: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def made() -> list[Conversation]:
    """Return all conversations, the same each time."""
    rng = random.Random(18)
    return [_made(rng, f"talk-{n}", PEOPLE[2 * n], PEOPLE[2 * n + 1]) for n in range(CONVERSATIONS)]


def _made(rng: random.Random, project: str, *people: str) -> Conversation:
    conversation = Conversation(project)
    facts: list[tuple[str, str, str]] = []  # speaker, turn, and statement to remember
    names = list(SUBJECTS)
    rng.shuffle(names)
    later: list[tuple[str, str, str]] = []
    for place, name in enumerate((*names, *names[:3])):
        # The last three are about the other person.
        turn = place % len(names) + place // len(names)
        subject, who, other = SUBJECTS[name], people[turn % 2], people[1 - turn % 2]
        first, second = rng.sample(subject.values, 2)
        facts.append((who, subject.said[0].format(first), subject.statement.format(first, p=who)))
        ask = conversation.questions.append
        if place < 4:
            later.append((who, subject.said[1].format(second), subject.statement.format(second, p=who)))
            ask(Question("updated", subject.question.format(p=who), second))
            if place == 0:
                ask(Question("temporal", subject.before.format(p=who), first))
        else:
            ask(Question("single", subject.question.format(p=who), first))
        if place in (4, 5):
            # This is not known about the other person.
            ask(Question("negative", subject.question.format(p=other), None))
    for (what, said, question), who in zip(rng.sample(EVENTS, 2), people, strict=True):
        date = f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"
        facts.append((who, said.format(date), f"{what.capitalize()} of {who} is on {date}"))
        conversation.questions.append(Question("temporal", question.format(p=who), date))
    rng.shuffle(facts)
    half = TURNS // 2
    places = {
        **dict(zip(sorted(rng.sample(range(10, half), len(facts))), facts, strict=True)),
        **dict(zip(sorted(rng.sample(range(half, TURNS - 10), len(later))), later, strict=True)),
    }
    for n in range(TURNS):
        if n in places:
            who, said, statement = places[n]
            conversation.statements.append(statement)
        else:
            who, said = people[n % 2], rng.choice(SMALL_TALK).format(n=rng.randint(2, 99))
        conversation.turns.append(f"{who}: {said}")
    return conversation
