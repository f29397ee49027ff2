"""Rules that the whole repository keeps."""
