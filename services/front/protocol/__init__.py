"""The MCP protocol: messages, the handshake, the SDK's servers, and a fast path for ordinary calls."""
