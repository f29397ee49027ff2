"""The command line.

`main` parses and hands over to one module for each command, imported only then: `linckia stdio` stands between an MCP
client and its first answer, and imports nothing beyond the standard library. Exit codes: 0 done, 1 it failed, 2 the
command or a setting was wrong, 3 another kernel holds the data directory, 130 interrupted.
"""
