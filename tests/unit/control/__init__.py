"""What the kernel serves itself."""
