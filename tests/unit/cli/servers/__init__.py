"""Commands about mounted servers."""
