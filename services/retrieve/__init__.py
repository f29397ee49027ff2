"""Named collections of text, found by words and by meaning."""
