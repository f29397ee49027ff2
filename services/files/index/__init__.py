"""The stored tree, and the scans and single updates that keep it in sync with the disk."""
