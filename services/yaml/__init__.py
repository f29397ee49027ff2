"""Span-exact editing of YAML files: read or change one value, and leave every other byte unchanged.

The package guarantees two things about an accepted edit: the bytes outside the touched span are unchanged, and the
result parses to the source's own events with only the addressed part changed. Both are checked after each edit; an edit
that violates either is refused without changing the file.
"""
