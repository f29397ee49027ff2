"""What services make of texts alike: blocks of Markdown, pieces that a model reads whole, names of files as words."""
