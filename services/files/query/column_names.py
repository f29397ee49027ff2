"""Names of the columns in memory: those of the index, and some that begin with one of these prefixes."""

from __future__ import annotations

ORDER = "ORDER BY "
"""The rows in an order."""

SET = "set "
"""Whether the rows are in a set, by its id."""

INSIDE = "in "
"""The ids of the entries of a directory in an order (`in ID ORDER BY …`)."""
