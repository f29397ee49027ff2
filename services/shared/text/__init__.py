"""Text processing that services share: blocks of Markdown, and pieces that a model reads whole."""
