"""The shared base of every service process: its event loop, its handlers, and how it is launched."""
