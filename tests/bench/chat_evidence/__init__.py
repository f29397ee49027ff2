"""Evidence found in long conversations."""
