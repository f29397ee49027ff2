"""MCP itself: messages, the handshake, the SDK's servers, and the fast path of ordinary calls."""
