"""`linckia export` and `import`: what users made, for any program to read, and from other programs."""
