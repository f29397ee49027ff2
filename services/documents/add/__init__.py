"""Adding texts, files and directories to the store."""
