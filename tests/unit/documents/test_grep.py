"""Every matching line is found, exactly those, whatever the index says; and a hostile pattern ends in time."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import apsw
import pytest
import trio

from proto.errors import InvalidParams
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete
from services.documents.operations.find import DocumentsGrep, GrepResult
from services.documents.operations.listing import DocumentsStatus
from services.documents.store import tables
from services.documents.text import trigram_index
from services.documents.text.trigram_index import RAREST, terms, thinned
from services.shared.literals import trigrams_of
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, tree

PATTERNS = (
    "alpha", "alpha|gamma", r"al\w+a", "(alpha|beta)+ gamma", "b[ae]ta", "gam{2}a", "gam{1,3}a", "^alpha", "delta$",
    "x?alpha", "(?i)ALPHA", "a.p", "a*", r"\balpha\b", r"[a-f]+ta", "(?:al|be)(?:pha|ta)", r"alp\x68a",
    "(?:alpha )?beta", "delta.*alpha", "alpha(?:| beta)", "a|b",
    "(al|be|ga|de)(pha|ta|mma|lta) (al|be|ga|de)(pha|ta|mma|lta)",
)  # fmt: skip


async def grep(bench: Bench, pattern: str, **more: object) -> GrepResult:
    return await bench.call(DocumentsGrep(pattern=pattern, **more))  # type: ignore[arg-type]  # checked by the call


async def indexed(bench: Bench) -> None:
    """Wait until the index has everything."""
    while (await bench.call(DocumentsStatus())).index_waiting:
        continue


def texts(count: int) -> dict[str, str]:
    chance = random.Random(count)
    words = ("alpha", "beta", "gamma", "delta", "Alpha", "gama", "gammma", "", "ALPHA", "xalpha")
    return {
        f"f{n:03}.txt": "\n".join(
            " ".join(chance.choice(words) for _ in range(chance.randrange(4))) for _ in range(chance.randrange(1, 8))
        )
        for n in range(count)
    }


def expected(files: dict[str, str], pattern: str) -> set[tuple[str, int]]:
    compiled = re.compile(pattern)
    found = set()
    for name, text in files.items():
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        found |= {(name, n) for n, line in enumerate(lines, 1) if compiled.search(line)}
    return found


async def test_matches_are_those_of_a_plain_scan_before_and_after_indexing(tmp_path: Path) -> None:
    files = texts(60)
    tree(tmp_path / "root", dict(files))
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        for _ in range(2):
            for pattern in PATTERNS:
                answer = await grep(bench, pattern, limit=10000)
                got = {(match.file.rsplit("/", 1)[-1], match.line_number) for match in answer.matches}
                assert got == expected(files, pattern), pattern
                assert answer.match_count == len(answer.matches) == len(got)
                assert answer.file_count == len({name for name, _ in got})
                assert not answer.truncated
            await indexed(bench)
        # The index does exclude contents, as it should.
        assert (await grep(bench, "xalpha gammma")).searched < len(files)


@pytest.mark.slow
def test_a_text_is_cut_into_pieces_of_whole_lines_and_not_too_many() -> None:
    chance = random.Random(8)
    for size in (0, 1, 4096, 4097, 70_000, 900_000):
        for every in (30, 3000, 100_000):
            filled = bytearray(b"x" * size)
            for at in chance.sample(range(size), size // every):
                filled[at] = ord("\n")
            text = bytes(filled)
            ends = trigram_index.ends(text)
            cut = [text[start:end] for start, end in itertools.pairwise((0, *ends))]
            assert b"".join(cut) == text
            assert len(cut) <= trigram_index.MOST
            assert all(piece.endswith(b"\n") for piece in cut[:-1])
            assert all(len(piece) >= trigram_index.PIECE_BYTES for piece in cut[:-1])


def test_contents_come_in_their_order_though_their_texts_do_not(tmp_path: Path) -> None:
    index = apsw.Connection(str(tmp_path / "index.db"))
    index.execute(tables.INDEX.tables)
    index.execute("PRAGMA synchronous=OFF")
    db = apsw.Connection(":memory:")
    db.execute("ATTACH ? AS idx", (str(tmp_path / "index.db"),))
    chance = random.Random(9)
    texts: dict[int, bytes] = {}

    def check() -> None:
        for word in ("alpha", "omega"):
            for least in (0, 20, 41, 1000):
                found = trigram_index.having(db, f'"{word[:3]}" AND "{word[2:]}"', least)
                assert list(found) == [id_ for id_ in sorted(texts) if id_ >= least and word.encode() in texts[id_]]

    check()
    for id_ in (*range(1, 60, 2), *range(0, 80, 5), *range(81, 90)):
        if id_ not in texts:
            lines = [chance.choice(("alpha", "omega", "-" * 300)) for _ in range(chance.choice((0, 1, 30, 300)))]
            texts[id_] = "\n".join(lines).encode()
            trigram_index.put(index, id_, texts[id_])
    check()
    for id_ in (*chance.sample(sorted(texts), 30), 89, 88, 1000):
        texts.pop(id_, None)
        trigram_index.remove(index, id_)
    check()
    for id_ in (90, 61, 91):
        texts[id_] = b"alpha\nomega"
        trigram_index.put(index, id_, texts[id_])
    check()
    while texts:
        trigram_index.remove(index, texts.popitem()[0])
    check()
    assert index.execute("SELECT count(*) FROM trigram_docsize").get == 0


def test_only_the_rarest_of_many_trigrams_are_looked_up() -> None:
    counts = {"_ae": 1.0, "aen": 1.3, "c d": 20.0}
    query = thinned(trigrams_of("async def __aenter__"), lambda one: (counts.get(one, 400.0), 0))
    assert query.trigrams > counts.keys()
    assert len(query.trigrams) == RAREST
    # Each alternative has to be looked for, and of it the rarest.
    counts = {"zet": 0.0, "het": 0.0, "the": 2.0, "eta": 2.0}
    either = thinned(trigrams_of("(?:zeta|theta)_function"), lambda one: (counts.get(one, 1.0), 0))
    assert not {"the", "eta"} & terms(either)
    assert {"zet", "het"} <= terms(either)


@pytest.mark.slow
async def test_lines_are_those_of_a_plain_scan_in_texts_of_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigram_index, "PIECE_BYTES", 24)
    monkeypatch.setattr(trigram_index, "MOST", 12)
    monkeypatch.setattr(trigram_index, "SAMPLED_OF", 3)
    chance = random.Random(11)
    words = ("alpha", "beta", "gamma", "delta", "ALPHA", "xalpha", "äöü", "")
    files: dict[str, str] = {}
    for n in range(40):
        lines = [
            " ".join(chance.choice(words) for _ in range(chance.randrange(5))) for _ in range(chance.randrange(60))
        ]
        files[f"f{n:03}.txt"] = chance.choice(("\n", "\n", "\r\n")).join(lines) + chance.choice(("", "\n"))
    tree(tmp_path / "root", dict(files))
    plain = {name: text.replace("\r\n", "\n") for name, text in files.items()}
    patterns = (*PATTERNS, "alpha beta", "^gamma beta", "xalpha.*delta$", "ö.*alpha", "(?=x)xalpha", r"(al)pha \1pha")
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        for _ in range(2):
            for pattern in patterns:
                answer = await grep(bench, pattern, limit=10000, context=2)
                got = {(match.file.rsplit("/", 1)[-1], match.line_number) for match in answer.matches}
                assert got == expected(plain, pattern), pattern
                assert answer.match_count == len(got)
                for match in answer.matches:
                    lines = plain[match.file.rsplit("/", 1)[-1]].split("\n")
                    at = match.line_number - 1
                    assert match.line_text == lines[at]
                    found = re.search(pattern, lines[at])
                    assert found is not None
                    assert match.column == found.start() + 1
                    assert match.context_before == lines[max(0, at - 2) : at]
                    end = len(lines) - (lines[-1] == "")
                    assert match.context_after == lines[at + 1 : min(end, at + 3)]
            await indexed(bench)


async def test_required_literals_must_be_in_one_piece_of_a_text(tmp_path: Path) -> None:
    lines = [f"line {n} " + "x" * 60 for n in range(3000)]
    apart = [*lines[:500], "here is alpha", *lines[500:2500], "and there is omega", *lines[2500:]]
    together = [*apart[:2900], "here is alpha, and omega", *apart[2900:]]
    async with documents(tmp_path) as bench:
        await add_text(bench, "apart.txt", "\n".join(apart))
        await add_text(bench, "together.txt", "\n".join(together))
        await indexed(bench)
        for pattern, more in (("alpha.*omega", {}), ("ALPHA.*Omega", {"ignore_case": True}), ("(?i)Alpha.*OMEGA", {})):
            answer = await grep(bench, pattern, **more)
            assert [match.line_number for match in answer.matches] == [2901]
            assert answer.searched == 1
        assert (await grep(bench, "Alpha")).searched == 0
        assert (await grep(bench, "alpha")).match_count == 3
        await bench.call(DocumentsDelete(name="*.txt"))
        with trio.fail_after(60):
            # Wait until the garbage collector has told the index.
            while (await grep(bench, "line")).searched:
                await bench.call(DocumentsStatus())


async def test_a_long_text_without_a_document_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.documents.store.texts.WHOLE_BYTES", 1000)
    tree(tmp_path / "root", {"long.txt": "needle\n" * 1000})
    async with documents(tmp_path) as bench:
        # Its snapshot keeps the content.
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        await indexed(bench)
        found = await grep(bench, "needle", count=True)
        assert (found.searched, found.match_count) == (1, 1000)
        await bench.call(DocumentsDelete(name="long.txt"))
        assert (await grep(bench, "needle", count=True)).searched == 0


async def test_a_long_answer_continues_in_the_next_call(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        for n in range(7):
            # Two documents of one content as well.
            await add_text(bench, f"f{n}.txt", "\n".join(f"hit {line}" for line in range(9 if n != 3 else 8)))
        seen: list[tuple[str, int]] = []
        answer = await grep(bench, "hit", limit=5)
        while True:
            seen += [(match.file, match.line_number) for match in answer.matches]
            assert answer.truncated == (answer.next_cursor is not None)
            if answer.next_cursor is None:
                break
            answer = await grep(bench, "hit", limit=5, cursor=answer.next_cursor)
        assert len(seen) == len(set(seen)) == 6 * 9 + 8
        counted = await grep(bench, "hit", count=True)
        assert (counted.match_count, counted.file_count, counted.truncated) == (62, 7, False)
        assert sorted(one.count for one in counted.counts or []) == [8, 9, 9, 9, 9, 9, 9]
        files = await grep(bench, "hit", files_with_matches=True)
        assert sorted(files.files or []) == [f"f{n}.txt" for n in range(7)]
        assert (await grep(bench, "hit", max_count=2)).match_count == 14
        with pytest.raises(InvalidParams, match="cursor"):
            await grep(bench, "hit", cursor="nonsense")


async def test_lines_have_their_columns_and_neighbours(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "one\r\ntwo äö word\r\nthree\r\nfour\r\n")
        (match,) = (await grep(bench, "word$", context=1)).matches
        assert (match.line_number, match.column, match.line_text) == (2, 8, "two äö word")
        assert (match.context_before, match.context_after) == (["one"], ["three"])
        assert (await grep(bench, "ord", word=True)).match_count == 0
        assert (await grep(bench, "WORD", ignore_case=True)).match_count == 1
        assert (await grep(bench, "w.rd", literal=True)).match_count == 0
        assert (await grep(bench, "two.*\nthree")).match_count == 0


async def test_documents_are_chosen_by_path_pattern_and_tag(tmp_path: Path) -> None:
    tree(tmp_path / "root", {"src/a.py": "needle", "src/deep/b.py": "needle", "doc/c.md": "needle"})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        await bench.call(DocumentsAdd(path="doc", tags=["docs"]))
        for _ in range(2):

            async def names(**more: object) -> list[str]:
                return sorted(match.file.rsplit("/", 1)[-1] for match in (await grep(bench, "needle", **more)).matches)

            assert await names(paths=["src"]) == ["a.py", "b.py"]
            assert await names(paths=[str(tmp_path / "root" / "src" / "deep"), "c.md"]) == ["b.py", "c.md"]
            assert await names(include_patterns=["*.py"]) == ["a.py", "b.py"]
            assert await names(include_patterns=["src/*.py"]) == ["a.py"]
            assert await names(exclude_patterns=["*.py"]) == ["c.md"]
            assert await names(tags=["docs"]) == ["c.md"]
            assert await names(extension="py") == ["a.py", "b.py"]
            await indexed(bench)
        await bench.call(DocumentsDelete(name="*.py"))
        assert await names() == ["c.md"]


@pytest.mark.slow
async def test_patterns_beyond_re2_are_matched_and_hostile_ones_end(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        await add_text(bench, "a.txt", "foobar\nfoobaz\nabab\nabba\n")
        assert [m.line_number for m in (await grep(bench, "foo(?=baz)")).matches] == [2]
        assert [m.line_number for m in (await grep(bench, r"^(\w\w)\1$")).matches] == [3]
        await add_text(bench, "b.txt", "a" * 60 + "!\n")
        hostile = await grep(bench, r"(?=a)^(a|aa)+$")
        assert hostile.match_count == 0
        assert any("takes too long" in said for said in hostile.degraded) or not hostile.degraded
        for bad in ("(", "[", "a{2", "*a", "(?P<n", "\\"):
            if bad == "a{2":
                # A brace that opens no quantity is a plain one.
                assert (await grep(bench, bad)).match_count == 0
                continue
            with pytest.raises(InvalidParams, match="pattern") as caught:
                await grep(bench, bad)
            assert "(?m)" not in caught.value.failure.message


@pytest.mark.slow
async def test_a_text_of_many_windows_is_searched_whole(tmp_path: Path) -> None:
    lines = [f"line {n} " + "x" * 80 for n in range(220_000)]
    lines[150_000] += " needle"
    tree(tmp_path / "root", {"big.txt": "\n".join(lines)})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path="big.txt"))
        (match,) = (await grep(bench, "needle$", context=2)).matches
        assert match.line_number == 150_001
        assert [line.split()[1] for line in match.context_before + match.context_after] == [
            "149998", "149999", "150001", "150002",
        ]  # fmt: skip
        assert (await grep(bench, "^line", count=True)).match_count == 220_000
