"""English words that searches ignore in queries that have other words.

They do not discriminate, and make an index read most of its data. The index, the scan of documents that are not indexed
yet, and the choice of passages use the same list, so what is shown is what was searched for.
"""

from __future__ import annotations

STOP_WORDS = frozenset(
    (
        "a", "about", "above", "after", "again", "all", "also", "am", "an", "and", "any", "are", "as", "at",
        "be", "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "could",
        "did", "do", "does", "doing", "done", "down", "during", "each", "few", "for", "from", "further", "had",
        "has", "have", "having", "he", "her", "here", "hers", "him", "his", "how", "i", "if", "in", "into",
        "is", "it", "its", "itself", "just", "may", "me", "might", "more", "most", "must", "my", "no", "nor",
        "not", "now", "of", "off", "on", "once", "only", "or", "other", "our", "ours", "out", "over", "own",
        "s", "same", "shall", "she", "should", "so", "some", "such", "t", "than", "that", "the", "their",
        "theirs", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too", "under",
        "until", "up", "upon", "us", "very", "was", "we", "were", "what", "when", "where", "which", "while",
        "who", "whom", "why", "will", "with", "would", "you", "your", "yours",
    )
)  # fmt: skip
