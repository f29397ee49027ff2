"""Whether an edit changed what it was meant to change alone, and whether a document fits a JSON Schema."""
