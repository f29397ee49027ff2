"""The service of Markdown notes: kept in step with their folders, searched, read, linked and tagged."""
