"""`fetch`: the one service that reaches out of this machine, for what a client asked to download."""
