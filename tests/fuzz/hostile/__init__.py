"""A real service that a test adds to a real kernel (`--with tests.fuzz.hostile`), and that does what it is told."""
