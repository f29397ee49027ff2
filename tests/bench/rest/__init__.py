"""What a kernel costs that nobody uses."""
