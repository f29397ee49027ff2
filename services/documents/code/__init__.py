"""What code defines and uses."""
