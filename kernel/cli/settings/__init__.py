"""Reads the settings: files, the environment and flags, which are merged and checked before anything starts."""
