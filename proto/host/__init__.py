"""The machine and the installation: files, memory, processes, optional parts, models."""
