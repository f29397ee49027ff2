"""Sessions in one document, or in several files: Amp, Copilot Chat, Cline and its relatives, and OpenCode's folders.

A file that belongs to the session of another (a message, a part, a list of notices) is read with that other.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePath
from typing import Any

from services.transcripts.lenient import Json, Unreadable, child, count, decode, items, records, text
from services.transcripts.sources import Opener, Session, Unfinished, whole
from services.transcripts.sources.databases import folder_of

HISTORY, NOTICES, METADATA = "api_conversation_history.json", "ui_messages.json", "task_metadata.json"
_KINDS = {"rooveterinaryinc.roo-cline": "roo-code", "kilocode.kilo-code": "kilo-code"}
"""Agents by the name of the editor's extension; any other task is Cline's."""
_CHATS = frozenset({"chatSessions", "emptyWindowChatSessions"})
_STORAGE = {"session": "ses_", "message": "msg_", "part": "prt_"}
"""OpenCode's kinds of files, and how their names begin."""
_THREAD = re.compile(r"T-[0-9a-zA-Z-]+\.json")
_BEGINS = re.compile(rb'\s*\{\s*"kind"\s*:\s*0\s*,\s*"v"')
_APPEND, _DELETE = 2, 3


def main_file(path: str, open_: Opener) -> str | None:
    """Return the file with which this one is read; None if it is not read."""
    pure = PurePath(path)
    if pure.name in (NOTICES, METADATA):
        return str(pure.with_name(HISTORY))
    if (place := _in_storage(pure)) is None:
        return None if pure.name == "workspace.json" and "workspaceStorage" in pure.parts else path
    storage, kind, below = place
    if kind == "session":
        return path
    if kind == "message":
        return _session_file(storage, below[0])
    if kind == "part":
        with contextlib.suppress(Unfinished, OSError):
            return _session_file(storage, text(_document(path, open_), "sessionID"))
    return None


def _in_storage(path: PurePath) -> tuple[str, str, tuple[str, ...]] | None:
    """Return OpenCode's storage folder, the kind of file, and the rest of the path; None for any other file."""
    parts = path.parts
    for index in reversed(range(len(parts) - 2)):
        is_named = path.name.startswith(_STORAGE.get(parts[index + 1], "\0"))
        if parts[index] == "storage" and (is_named or "opencode" in parts[:index]):
            return str(PurePath(*parts[: index + 1])), parts[index + 1], parts[index + 2 :]
    return None


def _session_file(storage: str, id_: str) -> str | None:
    found = glob.glob(os.path.join(glob.escape(storage), "session", "*", f"{glob.escape(id_)}.json")) if id_ else []
    return found[0] if found else None


def sessions(path: str, open_: Opener) -> Iterator[Session] | None:
    """Return the sessions in a file; None if it has records, and is read as it is. Raises OSError, Unfinished."""
    pure = PurePath(path)
    if pure.name == HISTORY:
        return _task(path, open_)
    if (place := _in_storage(pure)) is not None:
        return _opencode(path, place[0], open_) if place[1] == "session" else iter(())
    if _THREAD.fullmatch(pure.name):
        return _thread(path, open_)
    if pure.parent.name in _CHATS or (pure.suffix == ".jsonl" and _begins_chat(path, open_)):
        return _chat(path, open_)
    return None


def _document(path: str, open_: Opener) -> Json:
    """Return the object in a file. Raises OSError, Unfinished."""
    found = _value(path, open_)
    if not isinstance(found, dict):
        raise Unfinished("the file is incomplete and is left for the next import")
    return found


def _value(path: str, open_: Opener) -> Any:
    data = whole(path, open_)
    try:
        return decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (Unreadable, UnicodeDecodeError, RecursionError):
        return None


def _stamp(*paths: str) -> str:
    stamps = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            stamps.append(f"{status.st_size}/{status.st_mtime_ns}")
    return ",".join(stamps)


# Amp


def _thread(path: str, open_: Opener) -> Iterator[Session]:
    stamp = _stamp(path)
    thread = _document(path, open_)
    initial = child(child(thread, "env"), "initial")
    folders = [folder_of(text(each, "uri")) for each in records(initial, "trees")]
    session = {
        "id": text(thread, "id"), "title": text(thread, "title"), "created": thread.get("created"),
        "project": next(iter(folders), text(initial, "cwd")),
    }  # fmt: skip
    yield Session(path, stamp, "amp", lambda: [{"session": session}, *_said(items(thread, "messages"))])


def _said(messages: Iterable[object]) -> Iterator[Json]:
    return ({"message": each} if isinstance(each, dict) else {"damaged": True} for each in messages)


# Cline, Roo Code, Kilo Code


def _task(path: str, open_: Opener) -> Iterator[Session]:
    pure = PurePath(path)
    beside = [str(pure.with_name(name)) for name in (NOTICES, METADATA)]
    stamp = _stamp(path, *beside)
    messages = _value(path, open_)
    if not isinstance(messages, list):
        raise Unfinished("the file is incomplete and is left for the next import")
    notices, about = (_value(each, open_) if os.path.exists(each) else None for each in beside)
    used = list(records(about, "model_usage")) if isinstance(about, dict) else []
    agent = next((name for folder, name in _KINDS.items() if folder in pure.parts), "cline")
    model = text(used[-1], "model_id") if used else ""
    usage = _task_tokens(notices if isinstance(notices, list) else [])
    session = {"id": pure.parent.name, "agent": agent, "model": model, "counted": bool(usage)}
    told = [{"usage": usage}] if usage else []
    yield Session(path, stamp, "cline", lambda: [{"session": session}, *_said(messages), *told])


def _task_tokens(notices: list[object]) -> Json:
    sums = dict.fromkeys(("prompt_tokens", "completion_tokens", "cache_read_input_tokens"), 0)
    sums["cache_creation_input_tokens"] = 0
    for notice in notices:
        if not isinstance(notice, dict) or notice.get("say") != "api_req_started":
            continue
        try:
            told = decode(text(notice, "text") or "null")
        except (Unreadable, RecursionError):
            continue
        if isinstance(told, dict):
            read, written = count(told, "cacheReads"), count(told, "cacheWrites")
            # In the form of OpenAI's API, the tokens sent include the cached ones.
            is_whole = text(told, "apiProtocol") == "openai"
            sums["prompt_tokens"] += count(told, "tokensIn") + (0 if is_whole else read + written)
            sums["completion_tokens"] += count(told, "tokensOut")
            sums["cache_read_input_tokens"] += read
            sums["cache_creation_input_tokens"] += written
    total = sums["prompt_tokens"] + sums["completion_tokens"]
    return {**{name: value for name, value in sums.items() if value}, "total_tokens": total} if total else {}


# Copilot Chat


def _begins_chat(path: str, open_: Opener) -> bool:
    with open_(path) as file:
        return bool(_BEGINS.match(file.read(64)))


def _chat(path: str, open_: Opener) -> Iterator[Session]:
    stamp = _stamp(path)
    chat = _replayed(path, open_) if path.endswith(".jsonl") else _document(path, open_)
    about = os.path.join(os.path.dirname(os.path.dirname(path)), "workspace.json")
    place = _value(about, open_) if os.path.exists(about) else None
    session = {
        "id": text(chat, "sessionId") or PurePath(path).stem, "title": text(chat, "customTitle"),
        "created": chat.get("creationDate"),
        "project": folder_of(text(place, "folder", "workspace")) if isinstance(place, dict) else "",
    }  # fmt: skip
    yield Session(path, stamp, "copilot-chat", lambda: [{"session": session}, *_said(items(chat, "requests"))])


def _replayed(path: str, open_: Opener) -> Json:
    """Return the chat that a log of changes results in; an incomplete last line and damaged ones are left out."""
    chat: Any = {}
    for line in whole(path, open_).splitlines():
        try:
            entry = decode(line)
        except (Unreadable, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(entry, dict):
            chat = _changed(chat, entry)
    return chat if isinstance(chat, dict) else {}


def _changed(chat: Any, entry: Json) -> Any:
    keys, value = items(entry, "k"), entry.get("v")
    if entry.get("kind") == 0 or not keys:
        return value if isinstance(value, dict) else chat
    holder: Any = chat
    try:
        for key in keys[:-1]:
            holder = holder[key]
        if not isinstance(keys[-1], str if isinstance(holder, dict) else int):
            return chat
        if entry.get("kind") == _APPEND:
            if isinstance(holder, dict):
                holder.setdefault(keys[-1], [])
            entries = holder[keys[-1]]
            if isinstance(entry.get("i"), int):
                del entries[entry["i"] :]
            entries += value or []
        elif entry.get("kind") == _DELETE:
            del holder[keys[-1]]
        elif isinstance(holder, list) and keys[-1] == len(holder):
            holder.append(value)
        else:
            holder[keys[-1]] = value
    except (LookupError, TypeError):
        # A change of something that a damaged line would have added.
        pass
    return chat


# OpenCode


def _opencode(path: str, storage: str, open_: Opener) -> Iterator[Session]:
    info = _document(path, open_)
    id_ = text(info, "id")
    folder = os.path.join(storage, "message", id_)
    names = _listed(folder)
    kept = [os.path.join(storage, "part", name.removesuffix(".json")) for name in names]
    stamp = _stamp(path, folder, *(os.path.join(folder, name) for name in names[-2:]), *kept[-2:])
    if names and kept:
        stamp += _stamp(*(os.path.join(kept[-1], name) for name in _listed(kept[-1])))
    if names:
        yield Session(path, stamp, "opencode", partial(_opencode_records, info, folder, names, kept, open_))


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        # The names of messages and parts ascend with time.
        return sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    return []


def _opencode_records(info: Json, folder: str, names: list[str], kept: list[str], open_: Opener) -> Iterator[Json]:
    session = {
        "id": info["id"], "title": text(info, "title"), "project": text(info, "directory"),
        "created": child(info, "time").get("created"), "side": bool(text(info, "parentID")),
    }  # fmt: skip
    yield {"session": session}
    for name, beside in zip(names, kept, strict=True):
        given = _value(os.path.join(folder, name), open_)
        parts = [_value(os.path.join(beside, part), open_) for part in _listed(beside)]
        if isinstance(given, dict) and all(isinstance(part, dict) for part in parts):
            yield {"message": given, "parts": parts}
        elif name != names[-1]:
            if isinstance(given, dict):
                yield {"message": given, "parts": [part for part in parts if isinstance(part, dict)]}
            yield {"damaged": True}
        # The last message may be half written: it is read after its next change.
