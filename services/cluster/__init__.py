"""The cluster driver and what it runs on nodes. It is not a service: the kernel starts it if `[cluster]` is set."""
