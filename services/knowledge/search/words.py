"""The words that tell what a text is about: without function words, numbers and endings."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_WORD = re.compile(r"[^\W\d_][\w'’-]*[^\W_]")  # noqa: RUF001  # a typographic apostrophe
_ADDRESS = re.compile(
    r"<!--.*?-->|\]\([^()\s]*\)|(?:https?://|www\.)[^\s<>()]+|<[^<>\n]*>|&[a-z]+;|`[^`\n]*`|\[\[|\]\]", re.DOTALL
)
_LEAST_CHARS = 4
_EMPTY_WORDS = frozenset(
    _WORD.findall(
        """
    able about above according across actually add added adding adds after again against allow allowed allows almost
    alone along already also although always among and another any anything appear apply are around available away back
    based basic because become been before begin begins behind being below best better between beyond both briefly but
    call called calls can cannot case cases cause certain change changes check clear come comes common complete
    consider contain contains could course create created creates current currently default defined detail details did
    different directly does doing done down during each early easily easy either else enough etc even ever every
    everything example examples except expected false few find fine first follow following follows for former found
    from full fully further general get gets getting give given gives goes going good great had hand has have having
    help helps hence here hold how however http https important include included includes including info information
    inside instead into itself just keep kept kind know known large last later least left less let lets like likely
    line little long look looks lot made main make makes making many may maybe mean means meant might more most mostly
    much multiple must name named need needed needs never new next nice none normal normally not note notes nothing now
    number off often old once one ones only open order other others otherwise our out over own page part particular
    particularly people perhaps place plain please point possible present prevent previous probably provide provided
    provides put quick quickly quite rather read real really reason recent regarding related require required requires
    result results right same say says second section see seem seems seen self set sets several shall should show shown
    shows similar simple simply since small some someone something sometimes soon specific specified start started
    state still stop such support supported supports sure take taken takes tell than thanks that the their them
    themselves then there therefore these they thing things think this those though through thus time times title todo
    together too toward true try two type types typically under unless unlike until upon use used useful user users
    uses using usual usually value values various version very via want wants was way ways well went were what whatever
    when where whether which while who whole whom whose why will with within without word words work working works
    would write written wrong yes yet you your yours
    aber alle allem allen aller alles als also andere anderen auch auf aus bei beim bereits bevor bin bis bitte dabei
    dadurch dafür daher damit danach dann daran darauf daraus darf darin darüber das dass dem den denn dennoch der deren
    des dessen deshalb dich die dies diese diesem diesen dieser dieses doch dort durch eben eher eigenen ein eine einem
    einen einer eines einige einigen einmal entweder etwa etwas euch euer für ganz gegen gibt haben hatte hatten hier
    hinter ihnen ihre ihrem ihren ihrer immer indem ist jede jedem jeden jeder jedes jedoch jetzt kann kein keine keinem
    keinen keiner können könnte machen mehr mein meine mich mit muss müssen nach nicht nichts noch nun nur oben oder
    ohne schon sehr sein seine seinem seinen seiner seit sich sie sind sobald solche soll sollen sollte sondern sonst
    soweit sowie über und uns unser unsere unter viel viele vielen vom von vor wann war waren warum was weil weitere
    welche welchen welcher wenn wer werden wie wieder wird wirklich wobei wodurch wohl wollen wurde wurden würde zu zum
    zur zwar zwischen
    """
    )
)


def without_addresses(text: str) -> str:
    """Markdown without what is not read: targets of links, comments, markup, code within a line."""
    return _ADDRESS.sub(" ", text)


def key_of(word: str) -> str:
    """A word as it is compared, and empty where it tells nothing: plural and singular count as one."""
    key = unicodedata.normalize("NFKC", word).casefold().replace("’", "'").removesuffix("'s")  # noqa: RUF001
    is_name = word.isupper() and len(key) > 1
    if key in _EMPTY_WORDS or (len(key) < _LEAST_CHARS and not is_name and key.isascii()):
        return ""
    if len(key) > _LEAST_CHARS and key.endswith("ies"):
        return f"{key[:-3]}y"
    if len(key) >= _LEAST_CHARS and key.endswith("s") and not key.endswith(("ss", "us", "is")):
        return key[:-1]
    return key


def telling(text: str) -> list[tuple[str, str, int]]:
    """The telling words of `text` in order: key, the word as it stands, and where it begins."""
    found = ((key_of(match[0]), match[0], match.start()) for match in _WORD.finditer(text))
    return [each for each in found if each[0]]


def count_words(text: str) -> Counter[str]:
    """How often each telling word stands in `text`, by its key."""
    return Counter(key for key, _, _ in telling(text))


def shared(first: Counter[str], second: Counter[str], limit: int) -> list[str]:
    """The words that count most in both, longer ones first among equals."""
    both = first.keys() & second.keys()
    return sorted(both, key=lambda word: (-min(first[word], second[word]), -len(word), word))[:limit]
