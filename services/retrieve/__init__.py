"""Named collections of text, searched by words and by meaning."""
