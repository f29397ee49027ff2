"""Documents: the XML of word processors and presentations, mail and notebooks."""

from __future__ import annotations

import json

from services.decode.text.documents import text_of
from tests.fuzz.coverage import parted
from tests.unit.documents import formats

LIMIT_S = 60.0
_WORD = {"_rels/.rels": formats.relations(officeDocument="word/document.xml")}

SEEDS = [
    f"<w:document {formats.W}><w:p><w:pPr><w:pStyle w:val='T'/><w:numPr/></w:pPr><w:r><w:t>a</w:t><w:br/></w:r></w:p>"
    "<w:tbl><w:tr><w:tc><w:p><w:t>b</w:t></w:p></w:tc></w:tr></w:tbl></w:document>\0".encode()
    + f"<w:styles {formats.W}><w:style w:styleId='T'><w:name w:val='heading 3'/></w:style></w:styles>".encode(),
    b"<x><text:h xmlns:text='t' text:outline-level='2'>a<text:s/></text:h><list-item><p>b</p></list-item></x>\0<x/>",
    b"<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>\0",
    b"<p><p><p><t>deep</t></p></p></p>\0<style/>",
    b"From a\nSubject: =?utf-8?q?=C3=BC?=\nContent-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/html\n"
    b"\n<h1>a</h1><td>b</td>\n--x\nContent-Type: message/rfc822\n\nSubject: b\n\nc\n--x--\n\nFrom b\n\nd\0",
    json.dumps(
        {"cells": [{"cell_type": "code", "source": ["a"], "outputs": [{"text": "b"}, {"ename": "c"}]}]}
    ).encode(),
]


def read(data: bytes) -> None:
    """A document and its styles as XML; and the first as mail and as a notebook."""
    body, styles = parted(data, 2)
    word = formats.zipped({**_WORD, "word/document.xml": body, "word/styles.xml": styles})
    for one in (word, formats.zipped({"content.xml": body}), data, b"From " + data, b"{" + data):
        made = text_of(one, LIMIT_S)
        assert made.text or made.problem
