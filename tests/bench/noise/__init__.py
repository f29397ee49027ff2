"""The tokens of answers, with and without members that say nothing."""
