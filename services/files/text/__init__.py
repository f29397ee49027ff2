"""Reading, searching, editing and writing text files on disk, without the index."""
