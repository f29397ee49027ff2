"""What a handler may ask of the client through `Context.ask_client`, and what that costs.

An operation whose handler asks declares `asks=True`.  In the revisions with a handshake a question is a request to
the client.  In 2026-07-28 the call is answered with the questions, and the client makes it again with its answers:
the handler is then run **again from its start**, and finds the answers where it asks.  So ask before anything is
changed, and ask the same questions in the same order.

Methods: `elicitation/create`, `sampling/createMessage`, `roots/list`, and the two below.
"""

from __future__ import annotations

INPUTS = "linckia/inputs"
"""Several questions at once, each under a name of the handler's choice:
`{"inputs": {name: {"method": …, "params": {…}}}}`, answered by `{name: result}`.  A single question
asked by its plain method gets a name of the kernel's."""

CAPABILITIES = "linckia/capabilities"
"""The capabilities that the client declared, as the protocol writes them (`{"sampling": {}, …}`); it is not asked."""

CAPABILITY_OF: dict[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The capability that a client must have declared to be asked so."""

MISSING_CAPABILITY = -32021
"""`Failure.code` of a question that the client cannot answer; `data["capability"]` names what it lacks."""
