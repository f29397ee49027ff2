"""The ledgers of the chaos test."""
