"""The command line.

`parser` declares the commands, `__main__` runs one: its module is imported only then, since `linckia stdio` is between
an MCP client and its first answer and imports nothing beyond the standard library. Exit codes: 0 done, 1 it failed, 2
the command or a setting was wrong, 3 another kernel holds the data directory, 130 interrupted.
"""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_HELD = 3
EXIT_INTERRUPTED = 130


class Usage(Exception):
    """The command cannot be run as it was written; the message says what would be right."""


class Failed(Exception):
    """The command could not do what it was asked; the message says why and what to do."""
