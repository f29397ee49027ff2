"""What services make of texts alike: blocks of Markdown, and pieces that a model reads whole."""
