"""Settings and the launch of processes."""
