"""What the kernel records."""
