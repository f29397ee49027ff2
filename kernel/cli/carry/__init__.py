"""`linckia export` and `import`: data that users made, readable by any program, and data from other programs."""
