"""Sources and plans, and what runs for them."""
