"""Checks the settings of one service with its own code.

    echo '{"declared": "MODULE:CLASS", "name": "NAME", "table": {…}}' | python -m kernel.cli.settings.service_check

It is a process of its own, because the kernel must not load what services load. The last line of its errors says what
would be right.
"""

from __future__ import annotations

import importlib
import json
import sys

import msgspec

from proto.control.terminal import say


def main() -> int:
    """Return 0 if the setting is right."""
    asked = json.load(sys.stdin)
    place, _, kind = asked["declared"].partition(":")
    found = importlib.import_module(place)
    field = next(each for each in msgspec.structs.fields(getattr(found, kind)) if each.encode_name == asked["name"])
    try:
        msgspec.convert(asked["table"].get(asked["name"]), field.type)
        if (read := getattr(found, "read_settings", None)) is not None:
            read(asked["table"])
    except ValueError as error:
        problem, _, where = str(error).partition(" - at `$")
        say(f"{asked['name']}{where.rstrip('`')}: {problem[:1].lower()}{problem[1:]}", to=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
