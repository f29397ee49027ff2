"""Tools and resources that show the index and disk usage."""
