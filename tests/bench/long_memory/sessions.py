"""Sessions of ten people with an assistant over ten months, and questions of LongMemEval's kinds.

Built from templates with a seed, after LongMemEval (Wu et al., ICLR 2025): facts said once, facts that changed later,
facts spread over sessions, and topics that come up in many months. Questions use other words than the turns. Around the
facts people talk of other things, much of it about the same subjects. Nothing is real, and templates are easier to find
than real speech.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

PEOPLE = ("Anke", "Bruno", "Celia", "Dmitri", "Esra", "Felix", "Greta", "Hassan", "Ingrid", "Jonas")
NOW = datetime.datetime(2026, 6, 18, 17, 30, tzinfo=datetime.UTC)
"""When the questions are asked: a Thursday."""

DAYS = 300
SESSIONS = 44
"""Sessions of each person, besides those with facts that must have a day of their own."""


@dataclass(frozen=True)
class Subject:
    """A fact that a person has one of; `{}` is the value, `{p}` the person."""

    said: tuple[str, ...]
    statement: str
    question: str
    chatter: tuple[str, ...]
    values: tuple[str, ...]


SUBJECTS = (
    Subject(
        ("We signed for the flat, so from now on my letters go to {}.",
         "The boxes are unpacked, {} feels like home already.",
         "The landlord gave notice, so we packed up and are in {} now."),
        "{p} lives in {}", "In which city does {p} live?",
        ("Rents are mad everywhere, I read a long piece about it.",
         "Moving house is the worst, I helped a friend with his sofa."),
        ("Hamburg", "Lisbon", "Oslo", "Toronto", "Krakow", "Leeds", "Nantes", "Graz", "Porto", "Utrecht", "Turin",
         "Bergen"),
    ),
    Subject(
        ("Contract is in the post, I start at {} on the first.", "I handed in my notice, {} made a better offer.",
         "The whole team was let go, but {} picked me up within a week."),
        "{p} works at {}", "Who is {p}'s employer?",
        ("The office coffee is undrinkable again.", "Two meetings today that could have been mails."),
        ("Siemens", "Bosch", "Nokia", "Philips", "Danfoss", "Ericsson", "Alstom", "Vestas", "Nestle", "Airbus",
         "Miele", "Zeiss"),
    ),
    Subject(
        ("The puppy came on Saturday, the children insist on {}.", "We renamed the dog, he only listens to {}.",
         "Our old one died, the new dog from the shelter answers to {}."),
        "{p}'s dog is called {}", "What is the name of {p}'s dog?",
        ("A stranger's dog stole my sandwich in the park.", "Somebody told me that dogs dream too."),
        ("Rex", "Bello", "Waldo", "Pixel", "Nacho", "Bruna", "Mogli", "Fips", "Archie", "Yoda", "Sultan", "Kiwi"),
    ),
    Subject(
        ("Picked it up this morning, a used {}, but it runs fine.",
         "The old thing broke down for good, so now it is a {}.",
         "I got a {} from my uncle, for a symbolic price."),
        "{p} drives a {}", "Which make of car does {p} drive?",
        ("The motorway was closed again, two hours for nothing.", "Petrol prices, do not get me started."),
        ("Volvo", "Fiat", "Skoda", "Mazda", "Renault", "Toyota", "Saab", "Opel", "Honda", "Peugeot", "Kia", "Seat"),
    ),
    Subject(
        ("A trace of {} and my throat swells, I cannot eat there.", "The doctor tested again: it is {} after all.",
         "I ended up in the emergency room because of {} in a sauce."),
        "{p} is allergic to {}", "What must be left out of the food when {p} comes to dinner?",
        ("Cooked for eight people, most of it is in the fridge.", "The canteen had only beige food today."),
        ("peanuts", "shrimp", "celery", "sesame", "mustard", "walnuts", "soy", "lupins", "eggs", "hazelnuts",
         "cashews", "oysters"),
    ),
    Subject(
        ("My sister enrolled, it will be {} from autumn on.", "My sister gave up after a term and took {} instead.",
         "My sister got the place, five years of {} ahead of her."),
        "{p}'s sister studies {}", "What subject does the sister of {p} study?",
        ("The library was full of students asleep on their books.", "Exams should be abolished, honestly."),
        ("law", "chemistry", "geology", "history", "medicine", "physics", "theology", "botany", "economics", "Latin",
         "music", "maths"),
    ),
    Subject(
        ("Lessons every Thursday now, my neighbours will learn to love the {}.",
         "My teacher left, so I switched to the {}.",
         "I found a {} on the attic and cannot put it down."),
        "{p} is learning to play the {}", "Which musical instrument does {p} practise?",
        ("There was a concert in the park, mostly rain.", "That song has been in my head for days."),
        ("cello", "oboe", "trumpet", "harp", "banjo", "flute", "drums", "viola", "organ", "guitar", "tuba",
         "mandolin"),
    ),
    Subject(
        ("They gave me a desk next to {}, who runs the group.", "There was a reshuffle, I report to {} from Monday.",
         "My annual review was with {}, who took over the department."),
        "{p}'s manager is {}", "Who is {p}'s boss?",
        ("Someone in my team hums all day.", "We got new chairs, they squeak."),
        ("Ms Adler", "Mr Brandt", "Ms Cordes", "Mr Dietz", "Ms Ebert", "Mr Faber", "Ms Gruber", "Mr Hertz",
         "Ms Imhof", "Mr Jung", "Ms Kranz", "Mr Lorenz"),
    ),
    Subject(
        ("The dentist moved away, so I go to the practice of {} now.", "Finally a dentist without a drill sound: {}.",
         "Root canal done, {} was gentle, I stay there."),
        "{p}'s dentist is {}", "Which dentist does {p} go to?",
        ("The waiting room had magazines from 2009.", "I bit on a cherry stone, nothing broke."),
        ("Dr Amsel", "Dr Buchner", "Dr Conrad", "Dr Drost", "Dr Eich", "Dr Fink", "Dr Gaul", "Dr Hahn", "Dr Iller",
         "Dr Jost", "Dr Kern", "Dr Lind"),
    ),
    Subject(
        ("I open the account this week, all my money goes to {}.",
         "Their app is a joke, I took everything over to {}.",
         "The branch closed, so my salary arrives at {} from now on."),
        "{p} banks with {}", "At which bank does {p} have an account?",
        ("Taxes are done, I deserve a medal.", "Somebody paid with a bag of coins before me."),
        ("Sparkasse", "Revolut", "Triodos", "Commerzbank", "Santander", "Barclays", "Wise", "Raiffeisen", "Nordea",
         "Rabobank", "Handelsbanken", "Bunq"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Collected:
    """Facts that add up over sessions."""

    said: tuple[str, ...]
    statement: str
    question: str
    values: tuple[str, ...]


COLLECTED = (
    Collected(
        ("Back from {}, sunburnt and happy.", "Ten days in {} and not one mail read.",
         "We took the night train to {}, never again."),
        "{p} travelled to {}", "Which countries has {p} travelled to?",
        ("Albania", "Georgia", "Iceland", "Jordan", "Malta", "Morocco", "Norway", "Peru", "Slovenia", "Vietnam"),
    ),
    Collected(
        ("Finished {} last night, what an ending.", "I could not put {} down until three in the morning.",
         "The book club chose {}, I was the only one who liked it."),
        "{p} has read {}", "Which novels has {p} read?",
        ("Middlemarch", "Beloved", "Solaris", "Emma", "Dracula", "Stoner", "Kindred", "Austerlitz", "Piranesi",
         "Rebecca"),
    ),
    Collected(
        ("I bought a {} for the workshop, second hand.", "The parcel with the {} came, now I need a bigger shed.",
         "My father left me his {}, it still cuts."),
        "{p} owns a {}", "Which tools does {p} have?",
        ("band saw", "lathe", "router", "belt sander", "drill press", "jigsaw", "plane", "bench grinder", "chainsaw",
         "welder"),
    ),
    Collected(
        ("We planted a {} behind the house.", "The neighbour gave us a {}, we dug for an hour.",
         "I could not resist at the nursery: a {}, already two metres high."),
        "{p} planted a {}", "What trees are growing in {p}'s garden?",
        ("quince", "medlar", "walnut tree", "mulberry", "fig tree", "cherry tree", "plum tree", "rowan", "hazel",
         "apricot tree"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Topic:
    """Something that goes on for months; `said` are its stages."""

    name: str
    said: tuple[str, ...]


TOPICS = (
    Topic("the kitchen renovation", (
        "The kitchen has no floor at the moment, we cook in the bathroom.",
        "The plumber found a lead pipe behind the kitchen wall.",
        "Kitchen cabinets are up, one door hangs crooked.",
        "We argued about the kitchen tiles for an hour and took the green ones.",
        "The kitchen worktop arrived with a crack, it goes back.",
        "First meal in the new kitchen, pancakes of course.",
        "The electrician wants another thousand for the kitchen sockets.",
    )),
    Topic("the marathon training", (
        "Ran eighteen kilometres, the marathon plan says twenty.",
        "My knee hurts, so no marathon training for ten days.",
        "Signed up for the marathon, there is no way back.", "New shoes for the marathon, they look like boats.",
        "The coach cut my marathon plan in half.", "Longest run before the marathon done, thirty-two kilometres.",
        "I lost a toenail, they say that makes me a marathon runner.",
    )),
    Topic("the thesis", (
        "Chapter two of the thesis is with my supervisor.", "The thesis needs another experiment, says the reviewer.",
        "I deleted forty pages of the thesis and feel lighter.",
        "The title of the thesis changed for the third time.",
        "Found an error in the thesis data, a whole column was shifted.", "The defence of the thesis has a date now.",
        "Bibliography of the thesis sorted, six hundred entries.",
    )),
    Topic("the allotment", (
        "The allotment is under water after the storm.", "Put forty leeks into the allotment, my back is done.",
        "Slugs ate every lettuce in the allotment.", "We built a bench for the allotment out of old doors.",
        "The allotment committee complained about our hedge.",
        "First courgettes from the allotment, the size of shoes.",
        "Someone broke into the allotment shed and took the kettle.",
    )),
    Topic("the choir", (
        "The choir starts the Bach, I am lost by bar nine.", "The choir has a new conductor, very strict.",
        "Half the choir has a cold, we sounded like a fog horn.",
        "The choir sings in the cathedral at the end of the month.",
        "I was moved to the second altos in the choir.", "The choir weekend was in a monastery without heating.",
        "The choir lost its rehearsal room, we sing in a school gym.",
    )),
)  # fmt: skip

SMALL_TALK = (
    "Did you see the weather? Rain for the {n}th day in a row.", "I watched that series until {n} minutes past two.",
    "The train was {n} minutes late again, and no seat left.",
    "The new phone makes {n} sounds and I know none of them.",
    "Work was fine. {n} mails, one decision.", "We should see each other again, it has been {n} weeks.",
    "I read {n} pages and remember none of them.", "I counted {n} people in the waiting room.",
    "The city put up {n} new signs and nobody can read them.", "Do you know a word with {n} letters for boredom?",
    "Help me with a mail to the housing office, reference {n}.", "What can I cook with {n} carrots and an onion?",
    "Translate this for me: the meeting room is on floor {n}.", "How many litres are {n} gallons?",
    "Write a limerick about a man of {n}.", "Is {n} a prime number?",
    "Summarise that article about batteries in {n} words.",
    "I had {n} tabs open and closed the wrong one.", "My umbrella is gone, number {n} this year.",
    "Give me {n} ideas for a birthday present.",
)  # fmt: skip
REPLIES = (
    "Happy to help. What would you like to do next?", "That sounds like a full week.",
    "Here is a short version; tell me if you want more detail.", "Thanks for telling me. Shall I make a list?",
    "I would start with the simplest step and see how it goes.", "Understood. Anything else for today?",
    "That is a common problem; most people wait it out.", "Let me know how it turns out.",
)  # fmt: skip
ECHOES = ("{} it is, then. Congratulations.", "Good to know: {}. I will keep it in mind.", "{}, understood.")


@dataclass(frozen=True)
class Fact:
    """Something said in one session: the texts that state it (the turn, and perhaps the reply), and what an agent
    remembers of it."""

    texts: frozenset[str]
    statement: str
    at: datetime.datetime


@dataclass(frozen=True)
class Question:
    """A question, all facts that answer it, and the time that it asks for, in words."""

    kind: str
    text: str
    evidence: tuple[Fact, ...]
    period: str = ""


@dataclass
class Session:
    """Alternating turns of a person and the assistant."""

    at: datetime.datetime
    turns: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)


@dataclass
class History:
    sessions: list[Session]
    questions: list[Question]


class _Person:
    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng, self.name = rng, name
        self.told: list[tuple[Fact, str, str]] = []  # with the turn and the reply
        self.questions: list[Question] = []
        self.chatter: list[str] = []

    def tell(self, said: str, statement: str, at: datetime.datetime, value: str = "") -> Fact:
        turn = f"{self.name}: {said}"
        echoed = value and self.rng.random() < 0.3
        reply = self.rng.choice(ECHOES).format(value[:1].upper() + value[1:]) if echoed else self.rng.choice(REPLIES)
        fact = Fact(frozenset({turn, reply} if echoed else {turn}), statement, at)
        self.told.append((fact, turn, reply))
        return fact

    def ask(self, kind: str, text: str, evidence: Sequence[Fact], period: str = "") -> None:
        self.questions.append(Question(kind, text, tuple(evidence), period))

    def subjects(self) -> None:
        """Five facts said once, and four that changed."""
        for place, subject in enumerate(self.rng.sample(SUBJECTS, 9)):
            first, second = self.rng.sample(subject.values, 2)
            said = self.rng.sample(subject.said, 2)
            self.chatter += subject.chatter
            question = subject.question.format(p=self.name)
            told = [
                self.tell(words.format(value), subject.statement.format(value, p=self.name), at, value)
                for words, value, at in zip(
                    said, (first, second), (self.day(150, DAYS), self.day(10, 140)), strict=True
                )
                if place >= 5 or value == first
            ]
            self.ask("updated" if place >= 5 else "single", question, told[-1:])

    def collections(self) -> None:
        """Two subjects with two or three facts each, in different sessions."""
        for each, count in zip(self.rng.sample(COLLECTED, 2), (2, 3), strict=True):
            values = self.rng.sample(each.values, count)
            words = self.rng.sample(each.said, count)
            told = [
                self.tell(said.format(value), each.statement.format(value, p=self.name), self.day(5, DAYS), value)
                for said, value in zip(words, values, strict=True)
            ]
            self.ask("multi-session", each.question.format(p=self.name), told)

    def topics(self) -> None:
        """Two topics, each in six months and lately; each is asked about for three periods."""
        for topic in self.rng.sample(TOPICS, 2):
            lately = self.rng.choice(("yesterday", "last week", "last month"))
            days = {"yesterday": 1, "last week": self.rng.randint(4, 10), "last month": self.rng.randint(18, 48)}
            months = self.rng.sample(
                [(2026, 1), (2026, 2), (2026, 3), (2026, 4), (2025, 10), (2025, 11), (2025, 12)], 6
            )
            told: list[tuple[Fact, str]] = []
            stages = iter(self.rng.sample(topic.said, len(topic.said)))
            for year, month in months:
                said = next(stages)
                at = datetime.datetime(
                    year, month, self.rng.randint(2, 27), self.rng.randint(8, 20), tzinfo=datetime.UTC
                )
                told.append((self.tell(said, f"{self.name} on {topic.name}: {said}", at), f"{at:%B %Y}"))
            said = next(stages)
            latest = self.tell(said, f"{self.name} on {topic.name}: {said}", self.day(days[lately], days[lately]))
            for fact, period in self.rng.sample(told, 2):
                # A person says "in March"; the most recent one is meant.
                name = period.split()[0]
                words = self.rng.choice((name, period))
                self.ask("temporal", f"What did {self.name} say about {topic.name} in {words}?", [fact], words)
            self.ask("temporal", f"What did {self.name} say about {topic.name} {lately}?", [latest], lately)

    def day(self, least: int, most: int) -> datetime.datetime:
        """Return a moment `least` to `most` days ago, in the day."""
        ago = datetime.timedelta(days=self.rng.randint(least, most))
        return (NOW - ago).replace(hour=self.rng.randint(8, 20), minute=self.rng.randint(0, 59))

    def sessions(self) -> list[Session]:
        sessions = [Session(fact.at) for fact, _, _ in self.told]
        for session, (fact, turn, reply) in zip(sessions, self.told, strict=True):
            session.statements.append(fact.statement)
            self._talk(session, (turn, reply))
        for _ in range(SESSIONS):
            session = Session(self.day(1, DAYS))
            self._talk(session, None)
            sessions.append(session)
        return sessions

    def _talk(self, session: Session, fact: tuple[str, str] | None) -> None:
        exchanges = [
            (f"{self.name}: {said.format(n=self.rng.randint(2, 99))}", self.rng.choice(REPLIES))
            for said in self.rng.choices([*SMALL_TALK, *self.chatter], k=self.rng.randint(3, 7))
        ]
        if fact is not None:
            exchanges.insert(self.rng.randint(0, len(exchanges)), fact)
        session.turns = [turn for exchange in exchanges for turn in exchange]


def made(seed: int) -> History:
    """Return the history of all people for `seed`, the oldest session first."""
    rng = random.Random(seed)
    history = History([], [])
    for name in PEOPLE:
        person = _Person(rng, name)
        person.subjects()
        person.collections()
        person.topics()
        history.sessions += person.sessions()
        history.questions += person.questions
    history.sessions.sort(key=lambda session: session.at)
    return history
