"""The files that coding agents leave on disk, and exports, as messages."""
