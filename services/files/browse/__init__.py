"""Tools and resources that show the index, and where the space goes."""
