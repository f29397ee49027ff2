"""A scripted agent: chooses tools by their descriptions, fills in arguments, calls, and looks at the answers.

It sees what a client of MCP sees: the list of tools, and answers to its calls. It knows no server. A tool through which
more tools are found and called, as the composite tools of Linckia, is used as its own description says.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Json = dict[str, Any]

TRIES = 3
"""Tools that the agent calls for one request, at most."""

SYNONYMS = {
    "path": "file filename source from paths files",
    "key": "path field property",
    "to": "destination target new_path",
    "text": "content statement message contents observations body",
    "content": "text body",
    "query": "words search context pattern name_contains text",
    "pattern": "regex query search",
    "old": "old_text search",
    "new": "new_text replacement",
    "name": "entity_name names entity_names title source",
    "type": "entity_type kind",
    "append": "suffix",
    "date": "date_range",
    "heading": "title section",
    "repo": "repo_path repository",
    "revision": "ref commit",
    "new_key": "key",
    "beside": "comment",
    "target": "to destination",
    "tags": "labels",
    "documents": "items",
    "section": "heading",
}
"""Other names that parameters have for what a request tells, the same for all servers."""

_STOP = frozenset(
    re.findall(
        "[a-z]+",
        "a about all am an and any are as at be been before but by can could did do does each for from had has have he"
        " her his how i if in into is it its let may me might more most must my no not now of off on one or other our"
        " out own shall she should so some such than that the their them then there these they this those to too us was"
        " we were what when where which who whom why will with would yes you your",
    )
)
_NOTE = re.compile(r'\{"op": "(?P<op>\w+)", "params": \{"(?P<words>\w+)": "…"\}\} finds them')
"""How a description says that further tools are found by words."""
_SENTENCE = re.compile(r"(?<=[.;])\s")


class Request(NamedTuple):
    """All that the agent knows of a task: what a person says, and the values that follow from it."""

    text: str
    facts: Mapping[str, Any]


class Candidate(NamedTuple):
    """A tool that the agent may call; `within` is the tool through which it is called, if it has none of its own."""

    name: str
    title: str
    description: str
    schema: Json | None
    within: str = ""
    place: int = 0
    """Its place in the answer of the server's own search; 0 if that has not found it."""


class Answer(NamedTuple):
    text: str
    failed: bool


class Client(Protocol):
    """A connection to one server."""

    def tools(self) -> Sequence[Json]:
        """Return the answer to `tools/list`."""

    def call(self, name: str, arguments: Json) -> Answer:
        """Call a tool."""


Ranker = Callable[[str, Sequence[Candidate]], list[int]]
"""Orders candidates for a request, best first."""


def terms(text: str) -> list[str]:
    """Return the words of a text without their endings."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    words = [word for word in re.findall(r"[a-z]+|[0-9]+", split) if word not in _STOP]
    return [re.sub(r"(?<=[a-z]{3})(?:ions?|ies|ing|ed|es|s|e|y)$", "", word) for word in words]


def by_words(request: str, candidates: Sequence[Candidate]) -> list[int]:
    """Rank by BM25 over names, titles and descriptions."""
    texts = [Counter(terms(f"{each.name} {each.title} {each.description}")) for each in candidates]
    mean = sum(text.total() for text in texts) / len(texts)
    among = Counter(term for text in texts for term in text)

    def score(text: Counter[str]) -> float:
        total = 0.0
        for term in dict.fromkeys(terms(request)):
            rarity = math.log(1 + (len(texts) - among[term] + 0.5) / (among[term] + 0.5))
            total += rarity * text[term] * 2.2 / (text[term] + 1.2 * (0.25 + 0.75 * text.total() / mean))
        return total

    return sorted(range(len(texts)), key=lambda n: -score(texts[n]))


def by_vectors(encode: Callable[[Sequence[str]], Any]) -> Ranker:
    """Return a ranker by the cosine of vectors of unit length: request with title and first sentence."""
    known: dict[str, Any] = {}

    def vectors(texts: Sequence[str]) -> list[Any]:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, encode(new) if new else (), strict=True))
        return [known[text] for text in texts]

    def rank(request: str, candidates: Sequence[Candidate]) -> list[int]:
        first = [_SENTENCE.split(each.description, maxsplit=1)[0] for each in candidates]
        said = [f"{each.title or each.name}. {about}" for each, about in zip(candidates, first, strict=True)]
        asked, *passages = vectors([request, *said])
        return sorted(range(len(said)), key=lambda n: -float(passages[n] @ asked))

    return rank


def by_search(request: str, candidates: Sequence[Candidate]) -> list[int]:
    """Keep the order in which the server's own search returns tools, and leave out the others."""
    return sorted((n for n, each in enumerate(candidates) if each.place), key=lambda n: candidates[n].place)


# Arguments


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _named(fact: str, parameter: str) -> int:
    """Return how well a parameter's name fits a fact: 3 the same, 1 a synonym, 0 not at all."""
    parameter = _snake(parameter)
    if parameter in {fact, f"{fact}s"}:
        return 3
    return 1 if parameter in SYNONYMS.get(fact, "").split() else 0


def _fits(value: object, schema: Json) -> bool:
    """Return whether a value may be given where the schema is, as it is or as the only item of a list."""
    if "anyOf" in schema:
        return any(_fits(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items", {})
        return all(_fits(each, items) for each in value) if isinstance(value, list) else _fits(value, items)
    kinds: dict[object, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "object": (dict,),
    }
    return kind not in kinds or (isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool)))


def resolved(schema: Json) -> Json:
    """Return a schema with its definitions in the places that refer to them; a definition within itself is left out."""
    definitions = schema.get("$defs", {})

    def place(value: Any, within: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [place(each, within) for each in value]
        if not isinstance(value, dict):
            return value
        name = str(value.get("$ref", "")).removeprefix("#/$defs/")
        if name:
            return {} if name in within else place(definitions.get(name, {}), (*within, name))
        return {key: place(each, within) for key, each in value.items() if key != "$defs"}

    return dict(place(schema, ()))


def _given(value: object, schema: Json) -> object:
    return [value] if schema.get("type") == "array" and not isinstance(value, list) else value


def arguments(schema: Json, facts: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> Json | None:
    """Fill the parameters of a tool; None if a required one would be missing.

    Required parameters get the assignment whose names fit best, from facts or else from earlier answers. Optional ones
    get facts that remain.
    """
    filled = _filled(schema, facts, {**(earlier or {}), **facts})
    return filled.given if filled else None


class _Filled(NamedTuple):
    given: Any
    fit: int
    """How well names fit, in all."""
    used: frozenset[str]


def _filled(schema: Json, facts: Mapping[str, Any], known: Mapping[str, Any]) -> _Filled | None:
    """Fill the parameters of a schema: required ones from all that is known, optional ones from facts."""
    properties: Mapping[str, Json] = schema.get("properties", {})
    required = [name for name in schema.get("required", ()) if name in properties]
    best: _Filled | None = None
    for chosen in itertools.product(*(_choices(name, properties[name], facts, known) for name in required)):
        used = frozenset[str]().union(*(each.used for each in chosen))
        fit = sum(each.fit for each in chosen)
        if len(used) == sum(len(each.used) for each in chosen) and (best is None or fit > best.fit):
            best = _Filled({name: each.given for name, each in zip(required, chosen, strict=True)}, fit, used)
    if best is None:
        return None
    others = [name for name in properties if name not in required]
    optional = [(name, each) for name in others for each in _choices(name, properties[name], facts, facts)]
    for name, each in sorted(optional, key=lambda found: -found[1].fit):
        if name not in best.given and not each.used & best.used:
            best = _Filled({**best.given, name: each.given}, best.fit + each.fit, best.used | each.used)
    return best


def _choices(name: str, schema: Json, facts: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[_Filled]:
    """Yield what may be given to one parameter."""
    for fact, value in known.items():
        if (fit := _named(fact, name)) and _fits(value, schema):
            yield _Filled(_given(value, schema), fit, frozenset((fact,)))
    inner = schema.get("items", {}) if schema.get("type") == "array" else schema
    if inner.get("type") == "object" and inner.get("required"):
        within = _filled(inner, facts, facts)
        if within is not None and within.used:
            yield _Filled(_given(within.given, schema), within.fit, within.used)


def learned(text: str) -> Json:
    """Return the values of an answer in JSON by their names: of each name the first, which is the best match."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    found: Json = {}

    def look(value: object) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                if isinstance(each, str | int):
                    found.setdefault(_snake(key), each)
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(value)
    return found


# The agent


class Agent:
    """One client of one server.

    Args:
        ranker: orders candidates for a request.
    """

    def __init__(self, client: Client, ranker: Ranker) -> None:
        self._client = client
        self._rank = ranker
        self._listed = [
            Candidate(
                tool["name"], tool.get("title") or "", tool.get("description") or "", resolved(tool["inputSchema"])
            )
            for tool in client.tools()
        ]

    def has_search(self) -> bool:
        """Return whether the server has a tool that finds tools by words."""
        return any(_NOTE.search(tool.description) for tool in self._listed)

    def candidates(self, request: Request) -> list[Candidate]:
        """Return the tools that are listed or found for a request, best first."""
        every = {each.name: each for each in self._listed}
        for tool in self._listed:
            if note := _NOTE.search(tool.description):
                found = json.loads(self._step(tool.name, note["op"], {note["words"]: request.text}).text)
                for place, op in enumerate(found["ops"], 1):
                    new = Candidate(op["op"], "", op["about"], None, op["in"])
                    every[op["op"]] = every.get(op["op"], new)._replace(place=place)
        ordered = list(every.values())
        return [ordered[n] for n in self._rank(request.text, ordered)]

    def _step(self, tool: str, op: str, params: Json) -> Answer:
        """Call a tool through another one, which takes a list of steps or one."""
        listed = next(each for each in self._listed if each.name == tool)
        schema = listed.schema or {}
        (step,) = schema["required"]
        if schema["properties"][step]["type"] == "array":
            return self._client.call(tool, {step: [{"op": op, "params": params}]})
        return self._client.call(tool, {step: op, "params": params})

    def _schema(self, candidate: Candidate) -> Json:
        if candidate.schema is not None:
            return candidate.schema
        for tool in self._listed:
            if note := _NOTE.search(tool.description):
                described = json.loads(self._step(tool.name, note["op"], {"target": candidate.name}).text)
                return resolved(described.get("paramsSchema", {}))
        return {}

    def solve(self, request: Request, solved: Callable[[Answer], bool]) -> bool:
        """Call the best tools until an answer solves the task.

        A tool that lacks a required argument is left out until an earlier answer has it, such as the id of a note.
        """
        queue = [each for each in self.candidates(request) if not _is_composite(each)][: 2 * TRIES]
        schemas: dict[str, Json] = {}
        earlier: Json = {}
        for _ in range(TRIES):
            for candidate in queue:
                if candidate.name not in schemas:
                    schemas[candidate.name] = self._schema(candidate)
                given = arguments(schemas[candidate.name], request.facts, earlier)
                # A call that uses nothing of a request with details is no answer to it.
                if given or (given is not None and not request.facts):
                    break
            else:
                return False
            queue.remove(candidate)
            answer = self._call(candidate, given)
            if not answer.failed and solved(answer):
                return True
            earlier |= {} if answer.failed else learned(answer.text)
        return False

    def _call(self, candidate: Candidate, given: Json) -> Answer:
        if candidate.within:
            return self._step(candidate.within, candidate.name, given)
        return self._client.call(candidate.name, given)


def _is_composite(candidate: Candidate) -> bool:
    """Return whether a tool takes steps by their names: it is used for other tools, not by itself."""
    properties = (candidate.schema or {}).get("properties", {})
    return any("op" in each.get("items", {}).get("properties", {}) for each in properties.values())
