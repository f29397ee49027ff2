"""What crosses the link between the kernel and a process: frames, channels, and messages at launch."""
