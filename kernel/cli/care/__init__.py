"""`linckia doctor`, `backup` and `restore-backup`: what is wrong, repairs, and copies of the data."""
