"""The package that an installation imports; in a checkout it links to the folders at the top level."""
