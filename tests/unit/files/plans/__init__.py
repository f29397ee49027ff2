"""Sources and plans."""
