"""What runs, and with which settings: settings, manifests, mounts, tokens, and the launch of each process."""
