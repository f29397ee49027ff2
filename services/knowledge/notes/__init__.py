"""Notes: their files, sections, links and tags."""
