"""The process of a server: its environment, its start below a guardian, and its end."""
