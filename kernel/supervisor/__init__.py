"""The supervisor: a tree of child specs, a pure restart policy, and the processes that it starts, watches and ends."""
