"""Sources and plans, and the tasks that run them."""
