"""The one package that an installation imports; a checkout has its parts at the top level, and links to them here."""
