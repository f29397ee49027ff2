"""Notes on real disks."""
