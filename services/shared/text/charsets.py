"""Detects the character set of a text by its byte order mark, as UTF-8, by its declaration, or from its bytes.

A guess can be wrong, so every result gives the reason, and the original bytes are kept.
"""

# ruff: noqa: RUF001  # Letters and signs of many scripts are what this is about.
from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

Reason = Literal["utf-8", "mark", "declared", "detected", "assumed"]

SAMPLE_BYTES: Final = 65_536
_HEAD_BYTES: Final = 4096
_TAIL_BYTES: Final = 3000
_CERTAIN: Final = 0.5
"""Lowest score, out of 1, at which a set counts as detected."""

_DAMAGED: Final = 0.1
"""Highest share of the non-ASCII characters that may be damaged in a text of a set."""
_DAMAGED_UTF8: Final = 0.4
"""The same limit for UTF-8, which no other text resembles by chance."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
"""UTF-32 comes first: its mark begins with that of UTF-16."""

_DECLARED: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rb"""\A\s*<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([\w.:-]{1,40})""",
        rb"""<meta\s[^>]{0,400}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""",
        rb"""\A@charset\s+"([\w.:-]{1,40})";""",
        # Python and Emacs, in the first or second line.
        rb"""\A(?:[^\n]{0,400}\n)?[^\n]{0,400}?coding[:=]\s*([\w.:-]{1,40})""",
        # TeX.
        rb"""^[^%\n]{0,100}\\inputenc\[([\w.:-]{1,40})\]|^[^%\n]{0,100}\\usepackage\[([\w.:-]{1,40})\]\{inputenc\}""",
    )
)
_MODELINE: Final = re.compile(rb"(?:\bvim?|\bex):[^\n]{0,400}?\b(?:fenc|fileencoding)=([\w.:-]{1,40})", re.IGNORECASE)
_LOCAL: Final = re.compile(rb"Local Variables:.{0,2000}?\bcoding:\s*([\w.:-]{1,40})", re.IGNORECASE | re.DOTALL)
_LINE_ENDS: Final = re.compile(r"-(?:unix|dos|mac|emacs)$")
_LATIN: Final = re.compile(r"^(?:iso-)?latin-(\d+)$")

_BROADER: Final = {
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "iso8859-1": "cp1252",
    "ascii": "cp1252", "iso8859-9": "cp1254", "big5": "cp950", "iso8859-11": "cp874", "tis-620": "cp874",
}  # fmt: skip
"""Supersets of the declared sets, which texts that declare the narrower set often use."""
_NAMES: Final = {
    "ansinew": "cp1252", "applemac": "mac_roman", "gb_2312-80": "gb18030", "chinese-gbk": "gb18030",
    "japanese-shift-jis": "cp932", "sjis": "cp932", "x-sjis": "cp932", "windows-31j": "cp932", "x-euc-jp": "euc_jp",
    "ks_c_5601-1987": "cp949", "windows-949": "cp949", "windows-874": "cp874", "iso-8859-8-i": "iso8859-8",
    "x-gbk": "gb18030", "x-mac-roman": "mac_roman", "unicode": "utf-8", "cyrillic-koi8": "koi8_r",
}  # fmt: skip
"""Names that Python does not know."""
_NEVER: Final = frozenset(
    {"idna", "punycode", "utf-7", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}
)
_WIDE: Final = ("utf-16", "utf-32")


class Charset(NamedTuple):
    """A detected character set: `codec` is Python's name for it, `mark` the byte order mark at the start of the
    text."""

    codec: str
    reason: Reason
    mark: bytes = b""

    def decode(self, data: bytes) -> str:
        """Decode without the mark; invalid bytes become U+FFFD."""
        return data[len(self.mark) :].decode(self.codec, "replace")


def charset_of(data: bytes, *, is_cut: bool = False) -> Charset:
    """Detect the character set of a text. `is_cut` means that `data` is a prefix, which may end within a character."""
    if (marked := marked_charset(data)) is not None:
        return marked
    is_utf8 = data.isascii() or _fits(data, "utf-8", is_cut)
    # Some 7-bit sets begin each change of script with an escape.
    if is_utf8 and b"\x1b" not in data:
        return Charset("utf-8", "utf-8")
    if (declared := _declared(data)) is not None and (not is_utf8 or declared.startswith(("iso2022", "hz"))):
        for name in dict.fromkeys((declared, _BROADER.get(declared, declared))):
            if _nearly_fits(data, name, is_cut) and not (name == "iso8859-1" and _has_c1(data)):
                return Charset(name, "declared")
    if is_utf8:
        return Charset("utf-8", "utf-8")
    if _nearly_fits(data, "utf-8", is_cut):
        return Charset("utf-8", "assumed")
    if (detected := _detected(data, is_cut=is_cut)) is not None:
        return Charset(detected, "detected")
    return Charset("cp1252" if _fits(data, "cp1252", is_cut) else "latin-1", "assumed")


def marked_charset(data: bytes) -> Charset | None:
    """Return the character set that a byte order mark indicates, if there is one."""
    return next((Charset(name, "mark", mark) for mark, name in _MARKS if data.startswith(mark)), None)


def codec_of(name: str) -> str | None:
    """Return the Python codec for a declared name, if it is a text codec."""
    plain = _LATIN.sub(r"latin\1", _LINE_ENDS.sub("", name.strip().lower()))
    try:
        found = codecs.lookup(_NAMES.get(plain, plain))
    except LookupError:
        return None
    # A declaration written in single bytes cannot be right about a wide encoding.
    is_text = found._is_text_encoding and found.name not in _NEVER and not found.name.startswith(_WIDE)
    return found.name if is_text else None


def _declared(data: bytes) -> str | None:
    """Return the codec that the text declares as HTML, XML, CSS, TeX, Python, Emacs or Vim do; None if there is
    none."""
    head, tail = data[:_HEAD_BYTES], data[-_TAIL_BYTES:]
    for pattern in _DECLARED:
        if match := pattern.search(head):
            return codec_of(next(one for one in match.groups() if one).decode())
    lines = data.split(b"\n", 5)[:5] + data[-_TAIL_BYTES:].rstrip().rsplit(b"\n", 5)[-5:]
    match = next((one for line in lines if (one := _MODELINE.search(line[:1000]))), None) or _LOCAL.search(tail)
    return codec_of(match[1].decode()) if match else None


def _fits(data: bytes, codec: str, is_cut: bool) -> bool:
    try:
        codecs.getincrementaldecoder(codec)("strict").decode(data, not is_cut)
    except (UnicodeDecodeError, LookupError):
        return False
    return True


def _nearly_fits(data: bytes, codec: str, is_cut: bool) -> bool:
    """Return True if all bytes fit except for a few, which damage explains."""
    if _fits(data, codec, is_cut):
        return True
    with contextlib.suppress(LookupError, UnicodeError):
        sample = data[:SAMPLE_BYTES]
        text = codecs.getincrementaldecoder(codec)("replace").decode(sample, not is_cut and len(sample) == len(data))
        most = _DAMAGED_UTF8 if codec == "utf-8" else _DAMAGED
        return text.count("\ufffd") <= most * sum(not one.isascii() for one in text)
    return False


def _has_c1(data: bytes) -> bool:
    """Return True if there is a byte that ISO 8859 defines as a control character."""
    return any(0x80 <= byte < 0xA0 for byte in data)


# Detection: each set that all bytes fit gets a score for how common its characters are.

_HAN: Final = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去法学如都"
    "同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问"
    "很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处"
    "这個們來為國說時會對學過發後種經還進樣開從實無與長關點業間問應戰頭體見產動當沒現麼裡電話書市場價格數量總計單價姓名地址编号价数"
)
_KANJI: Final = _HAN | frozenset(
    "東京都区県社員株式税込価格円経費精算商品売買発注請求書務営業部課長氏名住所電話番号期円業務検索結果読込円説"
)
_HANGUL: Final = frozenset(
    "이다는의을에가고하지로도한서를어나사기아리자인대은시들그라일정해스부과수보만게주전장것으있했여와면습니입"
)
_CYRILLIC: Final = frozenset("оеаинтсрвлкм")
_GREEK: Final = frozenset("αοιετσνηυρπκμλςάέήίόύώ")
_HEBREW: Final = frozenset("יוהלארתשמבנםדחקעכפ")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_FEW: Final = 3
_LETTERS_OF_WORDS: Final = 2
"""Shortest plausible average word length."""
_SIGNS: Final = frozenset("“”‘’„‚–—…€°§©®™«»£¥·•ªº½¼¾¿¡±²³µ×")
_WIDE_SIGNS: Final = frozenset("、。「」・ー，：；？！（）《》“”　―～【】")


def _script(text: str, first: str, last: str, usual: frozenset[str]) -> float:
    """Score an alphabet with lower-case letters.

    A capital after a lower-case letter, a letter next to a Latin one, and letters that do not form words all indicate
    another set.
    """
    total = words = score = 0.0
    for word in _LETTERS.findall(text):
        if word.isascii():
            continue
        total += sum(not one.isascii() for one in word)
        words += 1
        if any(one.isascii() for one in word):
            continue
        has_small = False
        for at, one in enumerate(word):
            small = one.lower()
            if first <= small <= last or small in usual:
                is_capital = one != small
                weight = 0.0 if is_capital and has_small else 0.7 if is_capital and at else 1.0
                score += weight if small in usual else weight / 2
                has_small |= not is_capital
    total += sum(not one.isascii() for one in _LETTERS.sub("", text))
    # A letter or two are not enough evidence.
    return score / total if total > _FEW and total >= _LETTERS_OF_WORDS * words else 0


def _western(text: str) -> float:
    """Score a Western text, in which accented letters appear next to plain ones."""
    total = score = 0.0
    around = f" {text} "
    for at, one in enumerate(text, 1):
        if one.isascii():
            continue
        total += 1
        neighbours = around[at - 1] + around[at + 1]
        if one.isalpha():
            is_near_plain = any(other.isascii() and other.isalpha() for other in neighbours)
            score += 1 if is_near_plain else 0.9 if neighbours.isspace() else 0.45
        elif one in _SIGNS:
            score += 0.8
    return score / total if total else 0


def _east(
    usual: Callable[[str], bool], encoding: str, low: int, high: int, *, trail: int = 0xA1, common: float = 0.6
) -> Callable[[str], float]:
    """Score a set whose common characters have a first byte from `low` to `high` and a second byte from `trail`."""

    def score_of(text: str) -> float:
        total = score = 0.0
        for one in text:
            if one.isascii():
                continue
            total += 1
            if usual(one) or one in _WIDE_SIGNS:
                score += 1
            elif one >= "\u2e80":
                code = one.encode(encoding, "ignore")
                is_common = len(code) == 2 and low <= code[0] <= high and code[1] >= trail
                score += common if is_common else 0.1
        return score / total if total else 0

    return score_of


def _is_japanese(one: str) -> bool:
    return "\u3041" <= one <= "\u30ff" or one in _KANJI


_SETS: Final[tuple[tuple[str, float, Callable[[str], float]], ...]] = (
    ("cp1252", 1, _western),
    ("gb18030", 1, _east(_HAN.__contains__, "gb18030", 0xB0, 0xD7)),
    ("cp932", 1, _east(_is_japanese, "cp932", 0x88, 0x97, trail=0x40)),
    ("euc_jp", 0.8, _east(_is_japanese, "euc_jp", 0xB0, 0xCF)),
    ("cp949", 1, _east(_HANGUL.__contains__, "cp949", 0xB0, 0xC8, common=0.65)),
    ("cp950", 0.8, _east(_HAN.__contains__, "cp950", 0xA4, 0xC6, trail=0x40)),
    ("cp1251", 1, lambda text: _script(text, "а", "я", _CYRILLIC)),
    ("koi8_r", 0.75, lambda text: _script(text, "а", "я", _CYRILLIC)),
    ("cp866", 0.75, lambda text: _script(text, "а", "я", _CYRILLIC)),
    ("iso8859-5", 0.7, lambda text: _script(text, "а", "я", _CYRILLIC)),
    ("cp1253", 0.9, lambda text: _script(text, "ά", "ώ", _GREEK)),
    ("iso8859-7", 0.85, lambda text: _script(text, "ά", "ώ", _GREEK)),
    ("cp1255", 1, lambda text: _script(text, "א", "ת", _HEBREW)),
)  # fmt: skip
"""Codecs, each with a weight for how common it is among sets that fit the same bytes, and its scoring function."""


def _detected(data: bytes, *, is_cut: bool) -> str | None:
    sample = data[:SAMPLE_BYTES]
    best, most = None, _CERTAIN
    for name, weight, score_of in _SETS:
        try:
            text = codecs.getincrementaldecoder(name)("strict").decode(sample, not is_cut and len(sample) == len(data))
        except UnicodeDecodeError:
            continue
        score = weight * score_of(text)
        if score > most:
            best, most = name, score
    return best if best is None or len(sample) == len(data) or _fits(data, best, is_cut) else None
