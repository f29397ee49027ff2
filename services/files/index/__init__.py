"""The tree as it is stored, and the scans and single changes that keep it in step with the disk."""
