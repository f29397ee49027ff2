"""The kernel's end of the control socket; `proto.control` describes the protocol."""
