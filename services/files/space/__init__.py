"""Where the space goes: maps, the largest entries, duplicates, growth."""
