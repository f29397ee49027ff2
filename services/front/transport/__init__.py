"""How clients reach the gateway: HTTP and stdio, their sessions, and who may talk at all."""
