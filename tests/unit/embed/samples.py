"""Texts of every length and kind, and how vectors of them are compared."""

from __future__ import annotations

from linckia.services.embed.encoder import Vectors

TEXTS = [
    "cat",
    "",
    "A man is eating food.",
    "def parse_http_request(raw: bytes) -> Request: ...",
    "Größe und Übermut: 日本語のテキスト.",
    "word " * 60,
    "The quick brown fox jumps over the lazy dog. " * 80,
    "A man is eating food.",
    *(f"text number {n}, " * n for n in range(1, 30)),
]


def worst_cosine(left: Vectors, right: Vectors) -> float:
    return float((left * right).sum(axis=1).min())
