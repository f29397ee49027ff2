"""Texts in any character set are found, the answer says which set was taken, and the bytes stay."""

# ruff: noqa: RUF001  # Letters and signs of many scripts are what this is about.
from __future__ import annotations

import base64
from pathlib import Path

import pytest

from proto.ops.documents.reading import DocumentsGet
from services.decode.text.documents import text_of
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.find import DocumentsGrep, DocumentsSearch
from services.documents.store.kinds import nature
from services.documents.store.tables import TEXT_OWN
from services.retrieve.main import open_service as open_retrieve
from services.shared.text.charsets import charset_of, codec_of
from services.shared.text.html import plain
from tests.unit.documents.rig import documents, tree
from tests.unit.documents.test_imports import calls

CASES = Path(__file__).parents[4] / "shared" / "cases" / "reports" / "documents"

DECLARED = {
    "meta.html": ('<meta charset="windows-1252"><p>Café – Straße</p>', "cp1252", "Straße"),
    "equiv.html": (
        '<head><meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1"></head>naïve “so”', "cp1252",
        "naïve “so”",
    ),
    "latin2.html": ("<META CHARSET='iso-8859-2'><p>žluťoučký kůň</p>", "iso8859-2", "žluťoučký"),
    "unquoted.htm": ("<meta charset=gb2312><p>报销金额</p>", "gb2312", "报销金额"),
    "sjis.html": ('<meta http-equiv=content-type content="a; charset=Shift_JIS">経費精算', "shift_jis", "経費精算"),
    "jis.html": ('<meta charset="iso-2022-jp"><p>日本語</p>', "iso2022_jp", "日本語"),
    "feed.xml": ('<?xml version="1.0" encoding="windows-1251"?><a>Привет</a>', "cp1251", "Привет"),
    "ebcdic.xml": ("<?xml version='1.0' encoding='ISO-8859-15'?><a>œuvre à 5 €</a>", "iso8859-15", "œuvre à 5 €"),
    "code.py": ("# -*- coding: latin-1 -*-\ndef größe():\n    pass\n", "iso8859-1", "größe"),
    "second.rb": ("#!/usr/bin/ruby\n# encoding: euc-jp\nputs '経費'\n", "euc_jp", "経費"),
    "emacs.txt": (";; -*- mode: text; coding: koi8-r-unix -*-\nПривет\n", "koi8-r", "Привет"),
    "vim.c": ("/* 测试 */\nint main(void) { return 0; }\n/* vim: set fileencoding=gbk : */\n", "gbk", "测试"),
    "local.el": ('(setq a "žluť")\n;; Local Variables:\n;; coding: iso-latin-2\n;; End:\n', "iso8859-2", "žluť"),
    "style.css": ('@charset "windows-1250";\na::before { content: "łódź"; }\n', "cp1250", "łódź"),
    "paper.tex": ("\\usepackage[latin1]{inputenc}\nÜber die Größe\n", "iso8859-1", "Größe"),
}  # fmt: skip
DETECTED = {
    "western.txt": ("Das Gerät kostet 5 € in der Straße.\n", "cp1252", "Straße"),
    "french.csv": ("nom;prénom\nLefèvre;François\n", "cp1252", "Lefèvre;François"),
    "italian.txt": ("La città è più bella, perché c'è il mare: è così. Né a te né a me.\n", "cp1252", "perché c'è"),
    "lonely.txt": ("à la carte, à gauche, à droite, ou à pied; y où?\n", "cp1252", "à gauche"),
    "signs.csv": ("Temp;20 °C\nTol;± 2 µm\nPreis;5 £\n", "cp1252", "± 2 µm"),
    "capitals.txt": ("ÜBERSICHT DER MASSE: GRÖSSE, LÄNGE, HÖHE\n", "cp1252", "GRÖSSE"),
    "quotes.md": ("# Title\n\n“quoted” – text…\n", "cp1252", "“quoted” – text"),
    "chinese.csv": ("姓名,城市\n王小明,北京\n李雷,上海\n", "gb18030", "王小明"),
    "chinese.py": ("# 这是注释\nx = 1\n", "gb18030", "这是注释"),
    "japanese.txt": ("これはテストです。経費を精算します。\n", "cp932", "経費を精算"),
    "japanese.csv": ("商品名,価格\nりんご,100\n", "cp932", "商品名"),
    "euc.txt": ("日本語のテキストです。\n", "euc_jp", "テキスト"),
    "korean.txt": ("안녕하세요. 이것은 시험입니다.\n", "cp949", "시험입니다"),
    "taiwan.txt": ("這是一個測試，我們去公園。\n", "cp950", "我們去公園"),
    "russian.txt": ("Возмещение расходов на командировку.\n", "cp1251", "Возмещение"),
    "koi.txt": ("Возмещение расходов на командировку.\n", "koi8_r", "Возмещение"),
    "greek.txt": ("Η ελευθερία του λόγου και της σκέψης.\n", "cp1253", "ελευθερία"),
    "wide.txt": ("Größe über alles\n", "utf-16", "Größe"),
    "wider.txt": ("Größe über alles\n", "utf-32", "Größe"),
}
ENCODINGS = {"equiv.html": "cp1252", "gb18030": "gbk"}


def files() -> dict[str, bytes]:
    return {name: text.encode(ENCODINGS.get(codec, codec)) for name, (text, codec, _) in (DECLARED | DETECTED).items()}


@pytest.mark.parametrize("name", DECLARED | DETECTED)
def test_the_charset_is_the_declared_or_the_most_likely_one(name: str) -> None:
    text, codec, _ = (DECLARED | DETECTED)[name]
    data = files()[name]
    found = charset_of(data)
    assert found.decode(data) == text
    wide = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
    assert found.codec == wide.get(codec, codec)
    assert found.reason == ("declared" if name in DECLARED else "mark" if codec in wide else "detected")


def test_valid_utf_8_is_read_as_such_whatever_it_declares() -> None:
    declared = '<meta charset="windows-1252"><p>Straße</p>'
    assert charset_of(declared.encode()) == ("utf-8", "utf-8", b"")
    assert charset_of(b"plain") == ("utf-8", "utf-8", b"")
    # A text that is damaged in one place stays in its set.
    assert charset_of("Größe über alles, 日本語".encode() + b"\xff") == ("utf-8", "assumed", b"")
    assert charset_of("Straße".encode()[:-2], is_cut=True).codec == "utf-8"
    for unknown in ("no-such-set", "idna", "hex", "utf-16", "utf-7", "unicode_escape"):
        assert codec_of(unknown) is None
    assert charset_of(b'<meta charset="no-such-set">Stra\xdfe').codec == "cp1252"


def test_pictures_and_other_binary_data_are_not_text() -> None:
    for data in (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), bytes(range(128, 256)) * 9, b"\xff\xd8\xff\xe0\x10JFIF"):
        assert not nature(data, "x.txt").is_text
    for text, codec, _ in DETECTED.values():
        assert nature(text.encode(ENCODINGS.get(codec, codec)), "x").is_text
    assert nature("größe".encode(), "x").text_state == TEXT_OWN


def test_the_charset_of_mail_is_declared_or_guessed() -> None:
    for head, codec in (("; charset=x-sjis", "shift_jis"), ("; charset=no-such-set", "shift_jis"), ("", "shift_jis"),
                        ("; charset=iso-8859-1", "latin-1")):  # fmt: skip
        said = "Größe" if codec == "latin-1" else "経費を精算します。"
        mail = f"From: a@b.example\nSubject: s\nContent-Type: text/plain{head}\n\n".encode() + said.encode(codec)
        assert said in (text_of(mail, 10.0).text or "")


async def test_texts_of_each_charset_are_found_and_name_their_charset(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {**files(), "late.txt": b"plain\n" * 5000 + "Größe am Ende\n".encode("latin-1")})
    async with documents(tmp_path, {"retrieve": open_retrieve}) as bench:
        added = await bench.call(DocumentsAdd(path=str(root)))
        assert (added.failed_count, added.text_waiting, added.without_text) == (0, 0, [])
        for name, (text, codec, word) in (DECLARED | DETECTED).items():
            matches = (await bench.call(DocumentsGrep(pattern=word, literal=True))).matches
            assert name in {Path(match.file).name for match in matches}, name
            got = await bench.call(DocumentsGet(name=name, include_content=True))
            shown = plain(text) if got.mime_type == "text/html" else text
            assert (got.content, got.content_source, got.content_truncated) == (shown, "extracted_text", False)
            assert (got.text_charset or "").startswith(codec), name
            kept = await bench.call(DocumentsGet(name=name, include_content=True, original=True))
            assert (kept.content_source, kept.content_encoding) == ("original", "base64")
            assert base64.b64decode(kept.content or "") == files()[name]
        late = (await bench.call(DocumentsGrep(pattern="Größe am Ende"))).matches
        assert [match.line_number for match in late] == [5001]
        hits = await bench.call(DocumentsSearch(query="Возмещение расходов"))
        assert {hit.name for hit in hits.results[:2]} == {"russian.txt", "koi.txt"}


async def test_code_in_another_charset_has_its_symbols(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"a.py": "# coding: latin-1\ndef größe():\n    pass\n\ndef b():\n    größe()\n".encode("latin-1")})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "a.py") == {"b > a.py#größe"}


@pytest.mark.skipif(not CASES.is_dir(), reason="the reported cases are not beside this repository")
async def test_the_reported_page_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"page.html": (CASES / "declared-windows-1252.html").read_bytes()})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert len((await bench.call(DocumentsGrep(pattern="Straße"))).matches) == 1
        got = await bench.call(DocumentsGet(name="page.html"))
        assert got.text_charset == "cp1252 (declared)"
