"""Texts of many kinds for calibrating and comparing models: prose, questions, code, data, other scripts."""

from __future__ import annotations

SEEN = (
    "The quick brown fox jumps over the lazy dog.",
    "def parse(raw: bytes) -> Request:\n    return json.loads(raw)['items'][0]",
    "Größe und Übermut: 日本語のテキスト и русский текст",
    "Interest rates rose by 0.25 % in 2024; see https://example.org/report?id=17.",
    "A sea star can grow back an arm that it has lost.",
    "## Installation\n\npip install linckia && linckia serve ~/notes",
    "word " * 40,
    "Transcription of ribosomal RNA in HeLa cells was inhibited (p < 0.01) by 5-fluorouracil.",
    "which animals regrow limbs?",
    "x",
)
"""Used to determine how large values become inside the model."""

COMPARED = (
    "cat",
    "how do I restart a service",
    "A man is eating food while his dog sleeps under the table.",
    "SELECT name, count(*) FROM edges GROUP BY name HAVING count(*) > 3 ORDER BY 2 DESC;",
    "Der Vertrag endet am 31. März, sofern er nicht rechtzeitig verlängert wird.",
    "会议记录 下周二之前完成预算。",
    "Traceback (most recent call last): KeyError: 'user_id' in handlers.py, line 212",
    "id,name,price\n17,lamp,24.90\n18,chair,119.00\n19,table,349.50",
    "🙂 thanks!! see you tmrw",
    "The boundary layer over a flat plate is laminar up to a Reynolds number of about 5e5. " * 3,
    "La recherche par le sens trouve ce que les mots ne disent pas. " * 6,
    "It was on a dreary night of November that I beheld the accomplishment of my toils, and with an anxiety that "
    "almost amounted to agony I collected the instruments of life around me. " * 4,
)
"""Other texts, used to compare and time precisions."""
