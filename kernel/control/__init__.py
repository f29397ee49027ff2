"""The kernel's end of the control socket, whose protocol `proto.control` describes."""
