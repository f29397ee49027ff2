"""What a search of memories has to ask of the collection that finds them."""

from __future__ import annotations

from proto.ops.retrieve import Filter

SERVICE = COLLECTION = "memory"


def found_by(client: str, now_s: float | None) -> list[Filter]:
    """Return the filters of a search for a client in this MCP session ('' for none).

    They admit memories of no session or of the client's own; with `now_s`, only those that have not expired by then.
    """
    filters = [Filter(field="of", any_of=["", client])]
    return filters if now_s is None else [*filters, Filter(field="expires", at_least=now_s)]
