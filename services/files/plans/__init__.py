"""Plans: their sources, conditions and outcomes, and their executions."""
