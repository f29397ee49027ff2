"""A service that sends whatever it likes: the kernel under it lives."""
