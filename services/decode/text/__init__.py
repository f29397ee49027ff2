"""Documents as text: what search and grep read of them."""
