"""What a note is: its file, its text in sections, its links and its tags."""
