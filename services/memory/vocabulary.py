"""The closed word classes used to compare statements: small words, negations, numbers, units, antonyms.

A missing word costs little: two statements are then `similar_to` each other instead of `conflicts_with`. Both are
stored in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


SMALL = _words(
    "a an the is are was were be been being am do does did has have had to of in on at by for with from as and or that",
    "this these those it its he she they we i you my our your their his her us me them will would so also any more now",
    "der die das den dem des ein eine einen ist sind hat haben und oder im zu von mit auf",
) - _words("on")
"""Left out of comparisons. "On" stays, since it is the opposite of "off"."""

NEGATIONS = _words(
    "not no never none without cannot nothing neither nor nobody don't",
    "nicht kein keine keinen keinem keiner keines nie niemals ohne nichts",  # German
    "ne pas jamais aucun aucune sans rien",  # French
    "nunca ningún ninguna ninguno sin jamás nada nadie",  # Spanish
    "non mai senza nessun nessuna nessuno niente",  # Italian
    "não nem nenhum nenhuma sem",  # Portuguese
    "niet geen nooit zonder niets",  # Dutch
    "inte icke aldrig ikke ikkje aldri uden uten utan",  # Swedish, Danish, Norwegian
    "ei eivät",  # Finnish
    "nie nigdy bez żaden żadna",  # Polish
    "ne není nikdy žádný žádná",  # Czech
    "не нет ни никогда без нельзя ничего ні немає ніколи",  # Russian, Ukrainian
    "değil yok asla hiç",  # Turkish
    "δεν μην όχι ποτέ χωρίς",  # Greek
    "nem nincs soha",  # Hungarian
    "niciodată fără",  # Romanian
    "không chưa chẳng",  # Vietnamese
    "tidak bukan jangan tanpa",  # Indonesian
    "안 못 않는다 않다 않습니다 않아요 없다 없습니다 없어요 아니다 아닙니다",  # Korean
    "不 没 沒 無 无 未 非 别 別 勿",  # Chinese, by the character
    "لا ليس ليست لم لن ما غير بدون",  # Arabic
    "לא אין בלי אל",  # Hebrew
    "नहीं मत न बिना",  # Hindi
    "না নয় নেই",  # Bengali
)

VERBS = _words(
    "is are was were be been being isn't aren't has have had does do did can must should will would gets got",
    "becomes became means says equals uses used needs runs ran works worked lives lived listens serves costs",
    "takes took starts started ends ended begins began belongs owns owned contains holds stores opens closes",
    "opened closed prefers likes wants knows speaks reports leads manages keeps kept moved stays sits points",
    "depends requires supports expires allows accepts returns sends receives reads writes handles fails failed",
    "passes passed comes came goes went makes made ist sind war waren wird werden hat haben hatte heißt liegt",
    "steht läuft kostet gehört braucht beginnt endet wohnt est sont était ont avait sera coûte commence finit",
    "habite es son está están era tiene tienen fue será cuesta vive è sono era ha hanno sarà costa vive é são",
    "está tem têm foi custa mora is zijn was heeft hebben kost woont är var har kostar har koster oli jest są był",
    "mają kosztuje jsou byl má был была было были имеет стоит είναι ήταν έχει volt este sunt avea là có adalah",
    "ada punya memiliki 是 有 在",
)
"""Separate what a statement is about from what it says. A missing verb makes fewer contradictions certain.
Words that are something else in another language, such as the Finnish "on", are not here."""

STAYS, MOVES = (
    r"(?:is|are|lives?|lived|resides?|stays?|sits|is (?:now )?(?:located|based)) (?:in|at|on)"
    r"|(?:wohnt|lebt|ist|sitzt|liegt) (?:in|im|am)|(?:est|habite|vit) (?:à|au|en)|(?:está|vive|reside) en"
    r"|(?:è|vive|abita) (?:a|in)|(?:está|mora|vive) em|(?:is|woont) in",
    r"(?:has |have )?(?:moved|relocated|moves) to|(?:zog|zieht|ist) nach|(?:a déménagé|déménage) (?:à|au|en)"
    r"|se (?:mudó|muda|trasladó) a|si è trasferit[oa] a|(?:mudou-se|se mudou) para|(?:is verhuisd|verhuisde) naar",
)
"""Regular expressions for being somewhere and for going there, in lower case."""

CHANGED = (
    r"now|currently|no longer|any ?more|from now on|these days|instead|changed|switched|moved|relocated|migrated|new"
    r"|renamed|replaced|became|has become|left|quit|gave up|stopped|started|joined|upgraded|postponed|rescheduled|sold"
    r"|jetzt|nun|inzwischen|nicht mehr|mittlerweile|stattdessen|gewechselt|umgezogen|geändert|umbenannt|ersetzt"
    r"|neue[rsnm]?|maintenant|désormais|ne .{1,40} plus|changé|déménagé|remplacé|ahora|ya no|cambió|se mudó|ora|adesso"
    r"|non .{1,40} più|agora|já não|mudou|nu|niet meer|voortaan|теперь|больше не|现在|不再|今は|もう"
)
"""Regular expression for saying that something is no longer as it was, in lower case."""

ADDS = _words(
    "read visited travelled traveled planted bought owns owned met watched finished attended tried knows likes",
    "speaks gelesen besucht gekauft gesehen spricht besitzt lu visité acheté vu parle leído visitado comprado visto",
)
"""What one can do again, or have more than one of: another such statement replaces none."""

DIRECTIONS = _words(
    "over than before after to into from instead rather under above below behind",
    "als vor nach statt lieber über unter zu von hinter",
)
"""The words on the two sides of a direction cannot be exchanged."""


def _numbers(*lines: str) -> Mapping[str, str]:
    """Map number words to digits. Each line lists the words for 0, 1, 2 …; synonyms are joined by a slash."""
    return {word: str(n) for line in lines for n, words in enumerate(line.split()) for word in words.split("/")}


NUMBERS: Mapping[str, str] = {
    **_numbers(
        "zero one/once two/twice three/thrice four five six seven eight nine ten eleven twelve thirteen fourteen",
        "null eins/einmal zwei/zweimal drei/dreimal vier fünf sechs sieben acht neun zehn elf zwölf",
        "zéro un/une deux trois quatre cinq six sept huit neuf dix onze douze",
        "cero uno/una dos tres cuatro cinco seis siete ocho nueve diez once doce",
        "zero uno/una due tre quattro cinque sei sette otto nove dieci",
        "zero um/uma dois/duas três quatro cinco seis sete oito nove dez",
        "nul één twee drie vier vijf zes zeven acht negen tien",
        "ноль один/одна/одно два/две три четыре пять шесть семь восемь девять десять",
        "〇 一 二/两/兩 三 四 五 六 七 八 九 十",
    ),
    "fifteen": "15", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "seventy": "70",
    "eighty": "80", "ninety": "90", "hundred": "100", "thousand": "1000", "million": "1000000",
}  # fmt: skip
del _numbers


def _units(classes: Iterable[str]) -> Mapping[str, str]:
    """Map spellings of units to their first spelling; each class lists the spellings of one unit."""
    return {word: words.split()[0] for words in classes for word in words.split()}


UNITS: Mapping[str, str] = _units(
    (
        "ns nanosecond", "us µs μs microsecond", "ms millisecond msec", "s sec second sekunde sekunden seconde segundo",
        "min minute minuten minuto", "h hr hour stunde stunden heure hora", "d day tag tagen jour día dia",
        "w week wk woche wochen semaine semana", "month mo monat monaten mois mes", "quarter quartal",
        "year yr jahr jahren année año", "am a.m", "pm p.m",
        "mm millimeter millimetre", "cm centimeter centimetre zentimeter", "m meter metre", "km kilometer kilometre",
        "in inch inche zoll", "ft foot feet", "yd yard", "mi mile meile",
        "mg milligram milligramm", "g gram gramm", "kg kilogram kilo kilogramm", "t ton tonne", "lb lbs pound pfund",
        "oz ounce", "st stone", "ml milliliter millilitre", "cl", "l liter litre", "gal gallon", "cup", "tbsp", "tsp",
        "b byte", "kb", "mb", "gb", "tb", "pb", "kib", "mib", "gib", "tib", "bit", "kbit", "mbit", "gbit", "kbps",
        "mbps", "gbps", "hz", "khz", "mhz", "ghz", "w watt", "kw", "mw", "kwh", "wh", "v volt", "mv", "kv", "ma", "amp",
        "c celsius °c", "f fahrenheit °f", "k kelvin", "° deg degree grad", "rad radian", "%", "‰", "pa", "hpa", "kpa",
        "bar", "psi", "px pixel", "pt point", "em", "rem", "dpi", "eur euro €", "usd dollar $", "gbp £", "jpy yen ¥",
        "chf", "cent", "percent prozent", "kmh km/h", "mph",
    )
)  # fmt: skip
del _units


def _opposites(pairs: str) -> Mapping[str, frozenset[str]]:
    """Map words to their opposites. Each line lists groups of opposites; synonyms in a group are joined by a slash."""
    found: dict[str, set[str]] = {}
    for group in filter(None, (part.strip() for line in pairs.splitlines() for part in line.split(";"))):
        sides = [side.split("/") for side in group.split()]
        for side in sides:
            for word in side:
                found.setdefault(word, set()).update(*(other for other in sides if other is not side))
    return {word: frozenset(others) for word, others in found.items()}


ANTONYMS: Mapping[str, frozenset[str]] = _opposites(
    """
    enabled disabled; enable disable; enables disables; on off; true false; yes no; open/opened closed/shut
    open close
    allow/allowed/permit/permitted deny/denied/forbid/forbidden/block/blocked
    accept/accepted refuse/refused/reject/rejected
    always sometimes; before after; earlier later; early late; left right; up down; upper lower; top bottom
    over under
    above below; inside outside; in out; front back; north south; east west; first last; next previous; new old
    maximum/max minimum/min; most least; more less/fewer; higher/high lower/low; larger/large/big smaller/small
    increase/increased/rise decrease/decreased/fall; grow shrink; start/started/begin stop/stopped/end/ended
    public private; active inactive/passive; visible hidden; present absent; online offline; local remote
    internal external
    required/mandatory optional/forbidden; include/included exclude/excluded; add/added remove/removed; create delete
    light dark; black white; hot cold; warm cool; fast slow; quick slow; long short; thick thin; wide narrow
    deep shallow
    heavy light; full empty; safe unsafe/dangerous; possible impossible; valid invalid; correct incorrect/wrong
    same different
    complete incomplete; finished unfinished; happy unhappy/sad; healthy unhealthy; available unavailable
    known unknown
    stable unstable; signed unsigned; installed uninstalled; locked unlocked; encrypted unencrypted; sync async
    synchronous asynchronous; ascending descending; horizontal vertical; even odd; positive negative; good bad
    better worse
    best worst; like/likes/love/loves dislike/dislikes/hate/hates; win lose; won lost
    pass/passed/passes fail/failed/fails
    succeed/succeeded fail/failed; success failure; buy sell; push pull; import export; read write; readable writable
    input output; upload download; client server; single married; alive dead; day night; morning evening
    weekday weekend
    summer winter; male female; odd even; dry wet; loud quiet; rich poor; strong weak; easy hard/difficult
    cheap expensive
    production/prod staging/development/dev; red green; agree/agrees/agreed disagree/disagrees/disagreed
    an aus; ja nein; wahr falsch; offen geschlossen/zu; aktiviert deaktiviert; aktiv inaktiv; erlaubt verboten
    immer nie/selten; vor nach; links rechts; oben unten; hell dunkel; groß klein; heiß kalt; neu alt; schnell langsam
    öffentlich privat; hoch niedrig; früh spät; mehr weniger; gut schlecht; richtig falsch; voll leer
    lang kurz; ein aus
    activé désactivé; actif inactif; vrai faux; oui non; ouvert fermé; avant après; gauche droite; chaud froid
    grand petit
    nouveau ancien/vieux; rapide lent; toujours jamais; public privé; clair sombre; permis interdit; plus moins
    activado/habilitado desactivado/deshabilitado; activo inactivo; verdadero falso; sí no
    abierto/abierta cerrado/cerrada
    antes después; izquierda derecha; caliente frío; grande pequeño; nuevo viejo; rápido lento; siempre nunca
    claro oscuro
    público privado; permitido prohibido; encendido/encendida apagado/apagada; más menos; alto bajo; bueno malo
    attivo/attivato inattivo/disattivato; vero falso; aperto chiuso; acceso spento; prima dopo; sinistra destra
    caldo freddo
    abilitato disabilitato; grande piccolo; nuovo vecchio; veloce lento; sempre mai; chiaro scuro; consentito vietato
    ativado desativado; ativo inativo; verdadeiro falso; aberto fechado; ligado desligado; depois antes; quente frio
    aan uit; waar onwaar; actief inactief; ingeschakeld uitgeschakeld; voor na; warm koud; groot klein; altijd nooit
    включен/включено/включён выключен/выключено/отключен/отключено/выключён; да нет; открыт/открыто закрыт/закрыто
    до после; всегда никогда; слева справа; левый правый; вверх вниз; светлый/светлая тёмный/тёмная/темный/темная
    горячий холодный; большой маленький; новый старый; быстрый медленный; можно нельзя; разрешено запрещено
    любит ненавидит
    开 关; 開 關/閉; 大 小; 高 低; 多 少; 上 下; 左 右; 前 后; 前 後; 早 晚; 冷 热; 新 旧; 快 慢; 真 假; 好 坏
    是 否; 明 暗; 男 女
    włączony/włączone wyłączony/wyłączone; tak nie; otwarty zamknięty; przed po; zawsze nigdy; nowy stary; duży mały
    açık kapalı; etkin devre; evet hayır; önce sonra; büyük küçük; sıcak soğuk; yeni eski
    켜져 꺼져; 켜짐 꺼짐; 열려 닫혀; 활성화 비활성화; 전 후; 오전 오후; 크다 작다
    """
)
del _opposites
