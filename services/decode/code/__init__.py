"""Source code: what it defines and uses."""
