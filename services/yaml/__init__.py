"""Span-exact editing of YAML files: read and change one value, and leave every other byte as it was.

The package promises two things about an accepted edit: the bytes outside the touched span are the same bytes, and the
result parses to the source's own events with only the addressed part changed. Both are checked after each edit, so an
edit that cannot keep them is refused and the file stays as it was.
"""
