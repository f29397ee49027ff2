"""The version, in the one place that packaging, `--version`, `status` and the MCP front read it from."""

VERSION = "0.1.0"
