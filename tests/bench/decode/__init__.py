"""Files decoded by the hour, compared with the same libraries in one process."""
