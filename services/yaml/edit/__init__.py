"""Changing one thing in a parsed file: candidate edits, of which the first that `check` lets pass is taken."""
