"""The index of files on real disks."""
