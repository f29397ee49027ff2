"""The service `echo`."""
