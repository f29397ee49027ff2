"""The command line.

`parser` declares the commands and `__main__` runs one. It imports the command's module only then, since an MCP client
waits for `linckia stdio`, which imports nothing beyond the standard library. Exit codes: 0 success, 1 failure, 2 wrong
command or setting, 3 the data directory is held by another kernel, 130 interrupted.
"""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_HELD = 3
EXIT_INTERRUPTED = 130


class Usage(Exception):
    """The command cannot be run as written; the message says what would be right."""


class Failed(Exception):
    """The command could not do what was asked; the message says why and what to do."""
