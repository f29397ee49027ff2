"""`fetch`: the only service with network access, for downloads that clients request."""
