"""A language model's opinion of notes that were found, in a process of its own."""
