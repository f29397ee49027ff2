"""Plans: what their sources find, what is done with it, and their executions."""
