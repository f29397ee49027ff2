"""`linckia doctor`, `backup` and `restore`: what is wrong, repairs, and copies of the data."""
