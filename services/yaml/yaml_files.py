"""The operations on YAML files: synchronous, self-contained and thread-safe.

A reading operation never changes a file. A changing one either does everything and returns once it is on disk, or
raises `YamlError` and has changed nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import msgspec

from services.runtime.rewrite import content_hash, read_whole, rewrite
from services.runtime.roots import Roots
from services.shared.text.lines import unified
from services.yaml import comments, restructure, schema
from services.yaml.errors import Code, NotApplicable, YamlError
from services.yaml.files import DEFAULT_MAX_BYTES, Source, file_errors, read_source, resolve
from services.yaml.fragment import read_fragment
from services.yaml.merge_edits import Merge, lost_as_data
from services.yaml.operations import (
    AppendEdit,
    CommentEdit,
    CommentsResult,
    DeleteEdit,
    Edit,
    EditResult,
    GetResult,
    RenameEdit,
    SetEdit,
    ValidateResult,
    YamlValue,
)
from services.yaml.path import parse_path
from services.yaml.tree import Tree
from services.yaml.values import get_at, locate, pick_document, read_tree, set_at

_CACHE_BYTES: Final = 256 * 1024 * 1024
_BYTES_PER_EVENT: Final = 320  # measured: an event, its value, its three offsets and its share of the tables
_BYTES_PER_CHARACTER: Final = 6  # the text and the raw bytes


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file's content and its tree."""

    source: Source
    tree: Tree

    @property
    def cost_bytes(self) -> int:
        return len(self.tree.stream.events) * _BYTES_PER_EVENT + len(self.source.text) * _BYTES_PER_CHARACTER


class ParseCache:
    """A thread-safe cache of the most recently used parsed files, of about `max_bytes`."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._lock = Lock()
        self._kept: OrderedDict[Path, Parsed] = OrderedDict()

    def get(self, path: Path, raw: bytes) -> Parsed | None:
        """Return the parsed content of `path`, if it still consists of these bytes."""
        with self._lock:
            found = self._kept.get(path)
            if found is not None:
                self._kept.move_to_end(path)
        return found if found is not None and found.source.raw == raw else None

    def put(self, path: Path, parsed: Parsed) -> None:
        """Cache a parsed file, unless it exceeds the limit by itself."""
        with self._lock:
            if (old := self._kept.pop(path, None)) is not None:
                self.used_bytes -= old.cost_bytes
            if parsed.cost_bytes > self.max_bytes:
                return
            self._kept[path] = parsed
            self.used_bytes += parsed.cost_bytes
            while self.used_bytes > self.max_bytes:
                self.used_bytes -= self._kept.popitem(last=False)[1].cost_bytes


class YamlFiles:
    """The YAML files under some roots, with a cache of parsed files limited by `cache_max_bytes`."""

    def __init__(
        self, roots: Roots, *, max_bytes: int = DEFAULT_MAX_BYTES, cache_max_bytes: int = _CACHE_BYTES
    ) -> None:
        self.roots = roots
        self.max_bytes = max_bytes
        self.cache = ParseCache(cache_max_bytes)

    def get(self, file: str, path: str, document: int = 0) -> GetResult:
        """Return the exact source of the value at a path. Raises YamlError (-32000, -32001, -32002)."""
        parsed = self._read(file)
        return GetResult(get_at(parsed.tree, path, document), parsed.source.digest)

    def get_comments(self, file: str, path: str, document: int = 0) -> CommentsResult:
        """Return the comments of the entry at a path. Raises YamlError (-32000, -32001, -32002)."""
        parsed = self._read(file)
        found, place = locate(parsed.tree, path, document, Code.NOT_FOUND)
        return CommentsResult(*comments.read_comments(parsed.tree, found, place), parsed.source.digest)

    def validate(self, file: str, against: dict[str, Any], document: int = 0) -> ValidateResult:
        """Check a document against a JSON Schema. Raises YamlError."""
        parsed = self._read(file)
        found = pick_document(parsed.tree, document, Code.NOT_FOUND)
        if found is None:
            raise YamlError(Code.NOT_FOUND, f"{file} has no document to validate")
        faults = schema.validate(parsed.tree, found, against)
        return ValidateResult(not faults, faults, parsed.source.digest)

    def edit(
        self,
        file: str,
        edits: Edit | Sequence[Edit],
        document: int = 0,
        if_match: str | None = None,
        dry_run: bool = False,
    ) -> EditResult:
        """Make one edit, or several in order, all or none: each sees the results of those before it. Raises
        YamlError."""
        each = edits if isinstance(edits, Sequence) else [edits]

        def make(tree: Tree, json_file: bool) -> Tree:
            return _applied(tree, each, document, json_file=json_file)

        return self._edit(file, make, lambda: _described(edits, file), if_match, dry_run)

    def merge(
        self, file: str, merge: Merge, document: int = 0, if_match: str | None = None, dry_run: bool = False
    ) -> EditResult:
        """Merge a mapping into the one at a path, all or none. Raises YamlError."""
        count = 0

        def make(tree: Tree, json_file: bool) -> Tree:
            nonlocal count
            edits = merge.edits(tree, document, json_file=json_file)
            count = len(edits)
            for edit in edits:
                try:
                    tree = apply(tree, edit, document, json_file=json_file)
                except YamlError as fault:
                    raise YamlError(fault.code, f"{edit.path}: {fault.message}: nothing was merged") from None
            return tree

        def described() -> str:
            done = "1 edit" if count == 1 else f"{count} edits"
            return f"merged into {merge.path or 'the document'} in {file} by {done} (comments and formatting preserved)"

        return self._edit(file, make, described, if_match, dry_run)

    def mapping(self, file: str) -> Mapping[str, object]:
        """Return the mapping that a file consists of, as data. Raises YamlError (-32000, -32001, -32003)."""
        tree = self._read(file, field="source").tree
        found = pick_document(tree, 0, Code.NOT_APPLICABLE)
        if lost := lost_as_data(tree):
            raise NotApplicable(f"`source`: {file} {lost}")
        data = None if found is None else schema.data_of(tree, found.event + 1)
        if not isinstance(data, dict):
            raise NotApplicable(f"`source`: {file} is not a mapping")
        return data

    def _edit(
        self,
        file: str,
        make: Callable[[Tree, bool], Tree],
        described: Callable[[], str],
        if_match: str | None,
        dry_run: bool,
    ) -> EditResult:
        """Change a file to the tree that `make` returns for its own, given whether it is JSON. Raises YamlError."""
        path = resolve(self.roots, file, write=not dry_run)
        versions: tuple[Parsed, Tree]

        def change(raw: bytes) -> bytes:
            nonlocal versions
            parsed = self._parsed(path, raw)
            _check_match(parsed.source.digest, if_match)
            after = make(parsed.tree, path.suffix.lower() == ".json")
            versions = parsed, after
            changed = raw if after is parsed.tree else parsed.source.encode(after.text)
            if len(changed) > self.max_bytes and not dry_run:
                raise NotApplicable(f"{file} would be larger than {self.max_bytes} bytes")
            return changed

        with file_errors(path, self.max_bytes):
            done = rewrite(
                str(path), self.roots, change, field="file", dry_run=dry_run, most=self.max_bytes,
                answer=lambda done: EditResult(described(), content_hash(done.after), True),
            )  # fmt: skip
        parsed, after = versions
        if dry_run:
            diff = unified(parsed.tree.text, after.text, file)
            return EditResult(diff or "nothing would change", parsed.source.digest, False, diff)
        if done.after != done.before:
            parsed = Parsed(read_source(done.after), after)
            self.cache.put(path, parsed)
        return EditResult(described(), parsed.source.digest, done.after != done.before)

    def _read(self, file: str, field: str = "file") -> Parsed:
        path = resolve(self.roots, file, field=field)
        with file_errors(path, self.max_bytes):
            raw = read_whole(str(path), self.roots, self.max_bytes)
        return self._parsed(path, raw)

    def _parsed(self, path: Path, raw: bytes) -> Parsed:
        found = self.cache.get(path, raw)
        if found is None:
            source = read_source(raw)
            found = Parsed(source, read_tree(source.text))
            self.cache.put(path, found)
        return found


def _check_match(digest: str, if_match: str | None) -> None:
    if if_match is not None and if_match.lower().removeprefix("sha256:") != digest:
        raise NotApplicable(
            f"the file has changed: if_match is {if_match}, but the file's digest is {digest}: read it again",
            {"expected": if_match, "found": digest},
        )


def _applied(tree: Tree, edits: Sequence[Edit], document: int, *, json_file: bool) -> Tree:
    """Return the tree after the edits."""
    for number, edit in enumerate(edits):
        try:
            tree = apply(tree, edit, document, json_file=json_file)
        except YamlError as fault:
            if len(edits) == 1:
                raise
            raise YamlError(fault.code, f"edits[{number}]: {fault.message}: no edits were made") from None
    return tree


def fragment_of(value: YamlValue) -> str:
    """Return a value as YAML text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _described(edits: Edit | Sequence[Edit], file: str) -> str:
    """Describe an edit, or several, for clients."""
    match edits:
        case SetEdit():
            return (
                f"set {edits.path} = {fragment_of(edits.value)} in {file} (lossless: comments and formatting preserved)"
            )
        case DeleteEdit():
            return f"deleted {edits.path} in {file}"
        case AppendEdit():
            return f"appended {fragment_of(edits.value)} to {edits.path} in {file}"
        case RenameEdit():
            return f"renamed {edits.path} to {edits.key} in {file}"
        case CommentEdit():
            return f"wrote the comments of {edits.path} in {file}"
    done = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
    return f"{done} in {file} (lossless: comments and formatting preserved)"


def apply(tree: Tree, edit: Edit, document: int, *, json_file: bool) -> Tree:
    """Return the tree after an edit. Raises YamlError."""
    if isinstance(edit, SetEdit):
        return set_at(tree, edit.path, fragment_of(edit.value), document, json_file=json_file)
    found, place = locate(tree, edit.path, document, Code.NOT_FOUND)
    match edit:
        case DeleteEdit():
            steps = parse_path(edit.path)
            if not steps:
                raise NotApplicable("the root cannot be deleted: set it instead")
            return restructure.delete(tree, found, place, tree.find(found, steps[:-1]))
        case AppendEdit():
            return restructure.append(tree, found, place, read_fragment(fragment_of(edit.value), found.tags))
        case RenameEdit():
            return restructure.rename(tree, found, place, edit.key)
        case CommentEdit():
            return comments.write_comments(tree, found, place, above=edit.above, beside=edit.beside)
