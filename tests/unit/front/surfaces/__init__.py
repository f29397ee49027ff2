"""What clients see: lists, search of tools, composite tools, prompts."""
