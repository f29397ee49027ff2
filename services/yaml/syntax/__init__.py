"""From text to events: the YAML 1.2 parser, with the exact span of every node."""
