"""How each provider's API writes messages, and how a streamed reply is put together."""
