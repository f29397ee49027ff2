"""The control socket of a data directory, as seen from outside: where it is, who holds it, and a client for it.

`DATA/kernel.sock` speaks newline-delimited JSON. A request is one line, answered before the next one is read:

    {"call": NAME, "params": {…}, "progress": true, "timeout_s": 5}
        any number of {"progress": {"done": …, "total": …, "message": …}}, then {"result": …}
    {"attach": {"surface": NAME, "roots": […]}}      with two descriptors in SCM_RIGHTS, the client's input and output,
                                                     and a third, its session's memory file, which outlives the kernel
        {"attached": {"pid": …, "ephemeral": true, "roots": […]}}, and when the MCP session has ended
        {"detached": {"reason": "client"}} (it left), "stopped" (the kernel ends in order) or
        "replaced" (another kernel continues the session)

or {"failure": {…}}, with the fields of `proto.errors.Failure`. Closing the connection cancels its requests.
Only the standard library is imported here, because every short command waits for these imports.
"""
