"""The commands `linckia resume` and `linckia export-chat`; the service converts, and they write the files."""
