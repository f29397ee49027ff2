"""Finding what was not asked for by name: gaps, tags, times, topics, and what to read next."""
