"""The operations on YAML files, as a service calls them: synchronous, each complete in itself, safe from several
threads.

A reading operation never changes a file. A changing one either does all that was asked and returns once that is on
disk, or raises `YamlError` and has changed nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from proto.ops.yaml import (
    AppendEdit,
    CommentEdit,
    CommentsResult,
    DeleteEdit,
    Edit,
    EditResult,
    Fault,
    GetResult,
    RenameEdit,
    SetEdit,
    ValidateResult,
)
from services.runtime.replace import CannotReplace, ChangedMeanwhile, FileLocks, replace_file
from services.yaml import remarks, restructure, schema
from services.yaml.cache import DEFAULT_MAX_BYTES as CACHE_MAX_BYTES
from services.yaml.cache import ParseCache, Parsed
from services.yaml.diff import unified
from services.yaml.edit import get_at, locate, pick_document, read_path, read_tree, set_at
from services.yaml.errors import Code, YamlError
from services.yaml.files import DEFAULT_MAX_BYTES, Roots, read_file
from services.yaml.fragment import read_fragment
from services.yaml.parser import MAX_DEPTH
from services.yaml.source import Source, read_source
from services.yaml.tree import Place, Tree

_ATTEMPTS = 3  # an edit without if_match starts again when another program changed the file meanwhile


class YamlFiles:
    """The YAML files under some roots. Holds the parsed files it was asked for, within `cache_max_bytes`."""

    def __init__(
        self,
        roots: Roots,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_depth: int = MAX_DEPTH,
        cache_max_bytes: int = CACHE_MAX_BYTES,
    ) -> None:
        self.roots = roots
        self.max_bytes = max_bytes
        self.max_depth = max_depth
        self.cache = ParseCache(cache_max_bytes)
        self.locks = FileLocks()

    def get(self, file: str, path: str, *, document: int = 0) -> GetResult:
        """The exact source of the value at a path. Raises YamlError (-32000, -32001, -32002)."""
        parsed = self._read(self.roots.resolve(file))
        return GetResult(get_at(parsed.tree, path, document), parsed.source.digest)

    def set_value(
        self, file: str, path: str, value: str, *, document: int = 0, if_match: str | None = None, dry_run: bool = False
    ) -> EditResult:
        """Set the value at a path. Raises YamlError (-32000, -32001, -32003)."""
        text = f"set {path} = {value} in {file} (lossless: comments and formatting preserved)"
        return self.edit(file, [SetEdit(path, value)], document=document, if_match=if_match, dry_run=dry_run, text=text)

    def delete(
        self, file: str, path: str, *, document: int = 0, if_match: str | None = None, dry_run: bool = False
    ) -> EditResult:
        """Delete the entry at a path. Raises YamlError (-32000 to -32003)."""
        text = f"deleted {path} in {file}"
        return self.edit(file, [DeleteEdit(path)], document=document, if_match=if_match, dry_run=dry_run, text=text)

    def append(
        self, file: str, path: str, value: str, *, document: int = 0, if_match: str | None = None, dry_run: bool = False
    ) -> EditResult:
        """Append an item to the sequence at a path. Raises YamlError (-32000 to -32003)."""
        text = f"appended {value} to {path} in {file}"
        return self.edit(
            file, [AppendEdit(path, value)], document=document, if_match=if_match, dry_run=dry_run, text=text
        )

    def rename(
        self, file: str, path: str, key: str, *, document: int = 0, if_match: str | None = None, dry_run: bool = False
    ) -> EditResult:
        """Rename the key at a path. Raises YamlError (-32000 to -32003)."""
        text = f"renamed {path} to {key} in {file}"
        return self.edit(
            file, [RenameEdit(path, key)], document=document, if_match=if_match, dry_run=dry_run, text=text
        )

    def get_comments(self, file: str, path: str, *, document: int = 0) -> CommentsResult:
        """The comments of the entry at a path. Raises YamlError (-32000, -32001, -32002)."""
        parsed = self._read(self.roots.resolve(file))
        found, place = locate(parsed.tree, path, document, Code.NOT_FOUND)
        above, beside = remarks.read_comments(parsed.tree, found, place)
        return CommentsResult(above, beside, parsed.source.digest)

    def set_comments(
        self,
        file: str,
        path: str,
        *,
        above: str | None = None,
        beside: str | None = None,
        document: int = 0,
        if_match: str | None = None,
        dry_run: bool = False,
    ) -> EditResult:
        """Write the comments of the entry at a path. Raises YamlError (-32000 to -32003)."""
        edit = CommentEdit(path, above, beside)
        text = f"wrote the comments of {path} in {file}"
        return self.edit(file, [edit], document=document, if_match=if_match, dry_run=dry_run, text=text)

    def validate(self, file: str, schema_text: str, *, document: int = 0) -> ValidateResult:
        """Check a document against a JSON Schema given as JSON or YAML text. Raises YamlError."""
        parsed = self._read(self.roots.resolve(file))
        found = pick_document(parsed.tree, document, Code.NOT_FOUND)
        if found is None:
            raise YamlError(Code.NOT_FOUND, f"{file} has no document to validate")
        faults = schema.validate(parsed.tree, found, schema.read_schema(schema_text))
        return ValidateResult(not faults, [Fault(*fault) for fault in faults], parsed.source.digest)

    def edit(
        self,
        file: str,
        edits: Sequence[Edit],
        *,
        document: int = 0,
        if_match: str | None = None,
        dry_run: bool = False,
        text: str | None = None,
    ) -> EditResult:
        """Apply several edits in order, all or none: each sees what those before it did. Raises YamlError."""
        path = self.roots.resolve(file)
        if dry_run:
            return self._dry_run(path, file, edits, document, if_match)
        done = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
        message = text if text is not None else f"{done} in {file} (lossless: comments and formatting preserved)"
        try:
            with self.locks.hold(path):
                for attempt in range(_ATTEMPTS):
                    parsed = self._read(path)
                    _match(parsed.source, if_match)
                    after = _apply(parsed.tree, edits, document, path)
                    if after is parsed.tree:
                        return EditResult(message, parsed.source.digest, False)
                    raw = parsed.source.encode(after.text)
                    if len(raw) > self.max_bytes:
                        raise YamlError(Code.NOT_APPLICABLE, f"{file} would be larger than {self.max_bytes} bytes")
                    try:
                        replace_file(path, parsed.source.raw, raw)
                    except ChangedMeanwhile:
                        if attempt + 1 == _ATTEMPTS or if_match is not None:
                            raise
                        continue
                    source = read_source(raw)
                    self.cache.put(str(path), Parsed(source, after))
                    return EditResult(message, source.digest, True)
        except CannotReplace as fault:
            raise YamlError(Code.IO, str(fault)) from None
        raise AssertionError("the last attempt returns or raises")

    def _dry_run(self, path: Path, file: str, edits: Sequence[Edit], document: int, if_match: str | None) -> EditResult:
        parsed = self._read(path)
        _match(parsed.source, if_match)
        after = _apply(parsed.tree, edits, document, path)
        diff = unified(parsed.tree.text, after.text, file)
        return EditResult(diff or "nothing would change", parsed.source.digest, False, diff)

    def _bytes(self, path: Path) -> bytes:
        return read_file(path, self.max_bytes)

    def _read(self, path: Path) -> Parsed:
        raw = self._bytes(path)
        found = self.cache.at_path(str(path), raw)
        if found is None:
            source = read_source(raw)
            found = self.cache.by_digest(str(path), source.digest)
            if found is None:
                found = Parsed(source, read_tree(source.text, max_depth=self.max_depth))
                self.cache.put(str(path), found)
        return found


def _match(source: Source, if_match: str | None) -> None:
    if if_match is not None and if_match.lower().removeprefix("sha256:") != source.digest:
        raise YamlError(
            Code.NOT_APPLICABLE,
            f"the file has changed: if_match is {if_match}, the file's digest is {source.digest}: read it again",
            expected=if_match,
            found=source.digest,
        )


def _apply(tree: Tree, edits: Sequence[Edit], document: int, path: Path) -> Tree:
    json_file = path.suffix.lower() == ".json"
    for number, edit in enumerate(edits):
        try:
            tree = _apply_one(tree, edit, document, json_file)
        except YamlError as fault:
            if len(edits) == 1:
                raise
            raise YamlError(fault.code, f"edits[{number}]: {fault.message}: none of the edits was made") from None
    return tree


def _apply_one(tree: Tree, edit: Edit, document: int, json_file: bool) -> Tree:
    if isinstance(edit, SetEdit):
        return set_at(tree, edit.path, edit.value, document, json_file=json_file)
    found, place = locate(tree, edit.path, document, Code.NOT_FOUND)
    if isinstance(edit, DeleteEdit):
        steps = read_path(edit.path, Code.NOT_FOUND)
        if not steps:
            raise YamlError(Code.NOT_APPLICABLE, "the root cannot be deleted: set it instead")
        parent: Place = tree.find(found, steps[:-1])
        return restructure.delete(tree, found, place, parent)
    if isinstance(edit, AppendEdit):
        return restructure.append(tree, found, place, read_fragment(edit.value, found.tags))
    if isinstance(edit, RenameEdit):
        return restructure.rename(tree, found, place, edit.key)
    return remarks.write_comments(tree, found, place, above=edit.above, beside=edit.beside)
