"""The text of files on the disk: read, searched, edited and written, without the index."""
