"""Conversations with questions and the turns that answer them: readers of LoCoMo and LongMemEval.

LoCoMo is Maharana et al., ACL 2024 (https://github.com/snap-research/locomo); LongMemEval is Wu et al., ICLR 2025
(https://github.com/xiaowu0162/LongMemEval).
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

LOCOMO_CATEGORIES = (1, 2, 3, 4)
"""Those whose questions have an answer; 5 asks for what nobody said."""

HUB_SET, HUB_FILE = "xiaowu0162/longmemeval-cleaned", "longmemeval_s_cleaned.json"

Json: TypeAlias = dict[str, Any]

_TURN_ID = re.compile(r"D(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")


class Unreadable(Exception):
    """The data are missing or have another format."""


class Turn(msgspec.Struct, frozen=True):
    """One turn: the words `Speaker: text`."""

    id: str
    session: str
    text: str


class Question(msgspec.Struct, frozen=True):
    """A question about one conversation, and the turns that answer it."""

    text: str
    conversation: str
    evidence: frozenset[str]
    sessions: frozenset[str]
    """Those with the evidence."""


@dataclass
class History:
    """All conversations of a set."""

    sessions: dict[str, list[Turn]] = field(default_factory=dict)
    """The turns of each session, in their order."""
    conversations: dict[str, list[str]] = field(default_factory=dict)
    """The sessions of each conversation."""
    questions: list[Question] = field(default_factory=list)

    @property
    def turns(self) -> Iterator[Turn]:
        for turns in self.sessions.values():
            yield from turns


class LocomoTurn(msgspec.Struct):
    """A turn of LoCoMo."""

    speaker: str
    dia_id: str
    text: str = ""


class LocomoQuestion(msgspec.Struct):
    """A question of LoCoMo."""

    question: str = ""
    category: int = 0
    evidence: list[str] = []


class LongTurn(msgspec.Struct):
    """A turn of LongMemEval."""

    role: str
    content: str = ""
    has_answer: bool | None = None


class LongQuestion(msgspec.Struct):
    """A question of LongMemEval, with all sessions in which to look for the answer."""

    question_id: str
    question: str
    haystack_session_ids: list[str]
    haystack_sessions: list[list[LongTurn]]
    answer_session_ids: list[str] = []


def locomo(path: Path) -> History:
    """Read a folder or ZIP file with one JSON file for each conversation, or `locomo10.json` with all of them.

    Raises:
        Unreadable: `path` has no conversation in this format.
    """
    history = History()
    for name, data in _files(path):
        try:
            found = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise Unreadable(f"{path}: {name}: {error}") from None
        for number, sample in enumerate(found if isinstance(found, list) else [found]):
            if not isinstance(sample, dict) or "qa" not in sample:
                raise Unreadable(f"{path}: {name} is no conversation of LoCoMo: it has no `qa`")
            id_ = str(sample.get("sample_id", Path(name).stem if isinstance(found, dict) else number))
            try:
                _add_locomo(history, id_, sample)
            except msgspec.ValidationError as error:
                raise Unreadable(f"{path}: {name}: {error}") from None
    if not history.questions:
        raise Unreadable(f"{path} has no JSON file of LoCoMo")
    return history


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the JSON files in a folder or ZIP file, or of the file itself."""
    if path.is_dir():
        # A clone has other JSON files, too.
        files = sorted(path.rglob("locomo10.json")) or sorted(path.rglob("locomo10*/*.json"))
        for file in files or sorted(path.glob("*.json")):
            yield file.name, file.read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            for name in sorted(each for each in packed.namelist() if each.endswith(".json")):
                yield name, packed.read(name)
    elif path.exists():
        yield path.name, path.read_bytes()
    else:
        raise Unreadable(f"{path} does not exist")


def _add_locomo(history: History, name: str, sample: Json) -> None:
    talk: Json = sample.get("conversation", sample)
    numbers = sorted(int(found[1]) for key in talk if (found := _SESSION.fullmatch(key)))
    ids = history.conversations[name] = [f"{name}/{number}" for number in numbers if talk[f"session_{number}"]]
    sessions: dict[str, str] = {}
    for session in ids:
        said = msgspec.convert(talk[f"session_{session.rpartition('/')[2]}"], list[LocomoTurn])
        history.sessions[session] = [
            Turn(f"{name}/{one.dia_id}", session, f"{one.speaker}: {one.text}") for one in said
        ]
        sessions |= {turn.id: session for turn in history.sessions[session]}
    for one in msgspec.convert(sample["qa"], list[LocomoQuestion]):
        # A few ids are written `D:3:5`, several may stand in one text, and a few name no turn: nobody finds those.
        texts = " ".join(one.evidence).replace("D:", "D")
        evidence = frozenset(f"{name}/D{int(a)}:{int(b)}" for a, b in _TURN_ID.findall(texts))
        if one.category in LOCOMO_CATEGORIES and evidence:
            within = frozenset(sessions[turn] for turn in evidence if turn in sessions)
            history.questions.append(Question(one.question, name, evidence, within))


def long_mem_eval(path: Path, most: int | None = None) -> History:
    """Read the first `most` questions of a file of LongMemEval. Questions without an answer are left out.

    Raises:
        Unreadable: the file is missing or has another format.
    """
    try:
        asked = msgspec.json.decode(path.read_bytes(), type=list[LongQuestion])
    except (OSError, msgspec.DecodeError) as error:
        raise Unreadable(f"{path} is no file of LongMemEval: {error}") from None
    history = History()
    for one in asked:
        if len(history.questions) == most:
            break
        if one.question_id.endswith("_abs"):
            continue
        ids: list[str] = []
        evidence: set[str] = set()
        for id_, said in zip(one.haystack_session_ids, one.haystack_sessions, strict=True):
            texts = [f"{turn.role}: {turn.content}" for turn in said]
            # The same session, of which some versions are shorter, stands in the haystacks of several questions.
            session = f"{id_}/{hashlib.sha256(chr(0).join(texts).encode()).hexdigest()[:8]}"
            ids.append(session)
            there = [number for number, turn in enumerate(said) if turn.content.strip()]
            history.sessions[session] = [Turn(f"{session}/{number}", session, texts[number]) for number in there]
            evidence |= {f"{session}/{number}" for number in there if said[number].has_answer}
        if evidence:
            history.conversations[one.question_id] = list(dict.fromkeys(ids))
            within = frozenset(turn.rpartition("/")[0] for turn in evidence)
            history.questions.append(Question(one.question, one.question_id, frozenset(evidence), within))
    if not history.questions:
        raise Unreadable(f"{path} has no question with evidence (turns with `has_answer`)")
    return history


def downloaded() -> Path:
    """Return LongMemEval's file from the model hub.

    Raises:
        Unreadable: the hub cannot be reached.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import hf_hub_download  # slow to import, and rarely needed

    try:
        return Path(hf_hub_download(HUB_SET, HUB_FILE, repo_type="dataset"))
    except Exception as error:  # noqa: BLE001  # the hub's client raises errors of several libraries
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Unreadable(
            f"cannot download {HUB_FILE} of {HUB_SET} ({reason}); name the file: --longmemeval FILE"
        ) from None
