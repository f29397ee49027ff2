"""What a language model says of notes that were found, in a process of its own."""
