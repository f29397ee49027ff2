"""Isolated service processes, one folder each.  They import `proto` and `services.runtime`, never each other or the kernel."""
