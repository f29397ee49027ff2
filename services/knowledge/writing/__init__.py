"""Creating, editing and renaming notes.  Every file is written atomically."""
