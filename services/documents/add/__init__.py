"""How texts, files and directories come into the store."""
