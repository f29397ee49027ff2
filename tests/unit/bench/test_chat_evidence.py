"""LoCoMo and LongMemEval are read in each of their formats, and evidence is found by every system."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.bench.chat_evidence.__main__ import measured, share
from tests.bench.chat_evidence.conversations import History, Question, Turn, Unreadable, locomo, long_mem_eval

Json = dict[str, Any]

TALK: Json = {
    "speaker_a": "Ada",
    "session_2_date_time": "1 May 2023",
    "session_2": [{"speaker": "Ada", "dia_id": "D2:1", "text": "It rained on the lizards."}],
    "session_1": [
        {"speaker": "Ada", "dia_id": "D1:1", "text": "Do you keep lizards?"},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "Two of them.", "blip_caption": "a photo"},
    ],
    "session_3": [],
    "session_4_date_time": "2 May 2023",
    "events_session_1": {"Ada": []},
}
QA: list[Json] = [
    {"question": "How many lizards?", "answer": 2, "evidence": ["D1:2"], "category": 4},
    {"question": "Which weather?", "answer": "rain", "evidence": ["D:2:01; D1:1", "D9:9"], "category": 1},
    {"question": "How many crabs?", "adversarial_answer": "2", "evidence": ["D1:2"], "category": 5},
    {"question": "Where?", "answer": "nowhere", "evidence": [], "category": 3},
]


def expected(name: str) -> History:
    return History(
        {
            f"{name}/1": [
                Turn(f"{name}/D1:1", f"{name}/1", "Ada: Do you keep lizards?"),
                Turn(f"{name}/D1:2", f"{name}/1", "Bob: Two of them."),
            ],
            f"{name}/2": [Turn(f"{name}/D2:1", f"{name}/2", "Ada: It rained on the lizards.")],
        },
        {name: [f"{name}/1", f"{name}/2"]},
        [
            Question("How many lizards?", name, frozenset({f"{name}/D1:2"}), frozenset({f"{name}/1"})),
            Question(
                "Which weather?",
                name,
                frozenset(f"{name}/{turn}" for turn in ("D2:1", "D1:1", "D9:9")),
                frozenset({f"{name}/1", f"{name}/2"}),
            ),
        ],
    )


@pytest.mark.parametrize("form", ["folder", "clone", "zip", "single file", "clone with a single file"])
def test_locomo_is_read_in_each_form(tmp_path: Path, form: str) -> None:
    name, path = "26", tmp_path / "26.json"
    if form.endswith("single file"):
        name, path = "conv-26", tmp_path / "locomo10.json"
        path.write_text(json.dumps([{"sample_id": "conv-26", "conversation": TALK, "qa": QA}]))
        (tmp_path / "personas.json").write_text("{}")
        given = path if form == "single file" else tmp_path
    elif form == "zip":
        given = tmp_path / "l.zip"
        with zipfile.ZipFile(given, "w") as packed:
            packed.writestr("data/", "")
            packed.writestr("data/26.json", json.dumps(TALK | {"qa": QA}))
    else:
        folder = tmp_path / "data" / "multimodal_dialog" / "locomo10_v2" if form == "clone" else tmp_path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "26.json").write_text(json.dumps(TALK | {"qa": QA}))
        given = tmp_path
    history, wanted = locomo(given), expected(name)
    assert history.sessions == wanted.sessions
    assert history.conversations == wanted.conversations
    assert history.questions == wanted.questions


def test_what_is_not_locomo_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for content, said in (({"a": 1}, "no `qa`"), ({"qa": []}, "no JSON file of LoCoMo"),
                          (TALK | {"qa": [{"question": 3}]}, "Expected `str`")):  # fmt: skip
        file.write_text(json.dumps(content))
        with pytest.raises(Unreadable, match=said):
            locomo(file)
    file.write_text("{")
    with pytest.raises(Unreadable, match=r"x\.json"):
        locomo(file)
    with pytest.raises(Unreadable, match="does not exist"):
        locomo(tmp_path / "nothing")


def said(role: str, content: str, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


LIZARDS = [said("user", "I keep lizards."), said("assistant", "How many?"),
           said("user", "Two, Ann and Bea.", has_answer=True), said("assistant", " ")]  # fmt: skip
RAIN = [said("user", "Will it rain on Monday?"), said("assistant", "Hardly.", has_answer=False)]


def asked(id_: str, question: str, sessions: dict[str, list[Json]], **more: Any) -> Json:
    return {
        "question_id": id_, "question_type": "single-session-user", "question": question, "answer": "?",
        "question_date": "2023/05/30 (Tue) 23:40", "haystack_dates": [""] * len(sessions),
        "haystack_session_ids": [*sessions], "haystack_sessions": [*sessions.values()],
        "answer_session_ids": [id_ for id_ in sessions if "answer" in id_], **more,
    }  # fmt: skip


LONG = [
    asked("q1", "How many lizards do I keep?", {"answer_1": LIZARDS, "rain": RAIN}),
    asked("q2_abs", "How many crabs do I keep?", {"answer_1": LIZARDS}),
    asked("q3", "What did you say about Monday?", {"rain": RAIN}),
    asked("q4", "What rain is likely?", {"rain": [RAIN[0], said("assistant", "Hardly any rain.", has_answer=True)]}),
]


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    path = tmp_path / "longmemeval_s.json"
    path.write_text(json.dumps(LONG))
    return path


def test_long_mem_eval_is_read_with_each_session_once(long_file: Path) -> None:
    history = long_mem_eval(long_file)
    texts = [[turn.text for turn in turns] for turns in history.sessions.values()]
    rain = "user: Will it rain on Monday?"
    assert texts == [
        ["user: I keep lizards.", "assistant: How many?", "user: Two, Ann and Bea."],
        [rain, "assistant: Hardly."],
        # The same id with other turns.
        [rain, "assistant: Hardly any rain."],
    ]
    lizards, shared, other = history.sessions
    assert history.conversations == {"q1": [lizards, shared], "q4": [other]}
    assert [(one.text, {*one.evidence}, {*one.sessions}) for one in history.questions] == [
        ("How many lizards do I keep?", {f"{lizards}/2"}, {lizards}),
        ("What rain is likely?", {f"{other}/1"}, {other}),
    ]
    assert len(long_mem_eval(long_file, 1).questions) == 1


def test_what_is_not_long_mem_eval_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for content, said_ in (('{"a": 1}', "Expected `array`"), ("[]", "no question with evidence"), ("[", "truncated")):
        file.write_text(content)
        with pytest.raises(Unreadable, match=said_):
            long_mem_eval(file)
    with pytest.raises(Unreadable, match="No such file"):
        long_mem_eval(tmp_path / "nothing")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench.chat_evidence", *arguments]
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = bench("--longmemeval")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("chat_evidence: cannot download longmemeval_s_cleaned.json")
    assert line.endswith("name the file: --longmemeval FILE")


def test_every_system_finds_the_evidence_of_a_small_set(long_file: Path) -> None:
    done = bench("--longmemeval", str(long_file))
    assert done.stderr == ""
    rows = [line for line in done.stdout.splitlines() if line.endswith(" ms")]
    # Five systems, of all conversations and of the question's own; there are fewer turns than ten.
    assert len(rows) == 10
    assert [row.split()[-5] for row in rows if not row.startswith("words")] == ["1.0000"] * 8
    assert done.returncode == 0
    assert "2 conversations, 3 sessions, 7 turns, 2 questions" in done.stdout


async def test_evidence_is_counted_among_ten_and_five_turns(tmp_path: Path) -> None:
    (tmp_path / "26.json").write_text(json.dumps(TALK | {"qa": QA}))
    history = locomo(tmp_path)
    calls: list[str] = []

    async def search(question: str, conversation: str) -> list[str]:
        calls.append(conversation)
        return ["26/D2:1", *["26/D1:9"] * 6, "26/D1:2"] if "lizards" in question else ["26/D1:1"]

    history.sessions["26/1"].append(history.sessions["26/1"][0])
    found = await measured(search, history, own=True)
    assert calls == ["26", "26"]
    # One of one and one of three turns among ten, none and one of three among five; the second begins rightly.
    assert math.isclose(found.ten, (1 + 1 / 3) / 2)
    assert math.isclose(found.five, (1 / 3) / 2)
    assert found.session == 0.5
    assert share(history.questions[1], ["26/D9:9", "26/D2:1"]) == 2 / 3
    await measured(search, history, own=False)
    assert calls[2:] == ["", ""]
