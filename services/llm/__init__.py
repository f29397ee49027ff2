"""A language model's assessment of search results, in a process of its own."""
