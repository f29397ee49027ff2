"""Operations of `approvals`: calls of clients that wait for a person, and the person's decisions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.approvals import KERNEL, SERVICE
from proto.operation import OPERATOR, Family, Params, Role

operator = Family(SERVICE, callers=(OPERATOR,))
internal = Family(SERVICE, role=Role.INTERNAL, callers=(KERNEL,))

_Name = Annotated[str, Meta(max_length=500)]

MAX_REASON = 2_000


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a decision, or did."""

    id: str
    operation: str
    tool: Annotated[str, Meta(description="Tool of a mounted server")] = ""
    asker: Annotated[str, Meta(description="Who made the call: a token's name, stdio or http")]
    source: Annotated[str, Meta(description="What the call is part of, such as a plan; empty if it is made now")] = ""
    target: Annotated[str, Meta(description="What the call is about")] = ""
    preview: Annotated[str, Meta(description="Beginning of its parameters")] = ""
    size: Annotated[int, Meta(description="Bytes of its parameters")] = 0
    state: Annotated[str, Meta(description="pending, approved, denied or expired")]
    waiting: Annotated[bool, Meta(description="Whether the call still waits; if not, a repetition finds this")] = False
    asked_at: Annotated[str, Meta(description="RFC 3339, UTC")]
    expires_at: Annotated[str, Meta(description="When the time to decide is over")]
    left_s: Annotated[float, Meta(description="Seconds left to decide")] = 0
    on_time_out: Annotated[Literal["deny", "allow"], Meta(description="What happens then")] = "deny"
    decided_at: str = ""
    by: Annotated[str, Meta(description="Who decided")] = ""
    reason: str = ""


class ApprovalList(msgspec.Struct, frozen=True, kw_only=True):
    """Pending calls, longest first, and recent decisions, latest first."""

    pending: list[Approval]
    recent: list[Approval] = []


@operator.read("approval_list", deadline_s=10)
class ApprovalListParams(Params[ApprovalList], frozen=True, kw_only=True):
    """List the calls that wait for an approval, and the latest decisions."""

    recent: Annotated[int, Meta(ge=0, le=500, description="Maximum number of decisions")] = 20


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome, as a sentence."""

    message: str
    approval: Approval


@operator.write("approval_decide", idempotent=True, deadline_s=10, text="message")
class ApprovalDecide(Params[Decided], frozen=True, kw_only=True):
    """Approve or deny a call that waits. The first decision counts."""

    id: Annotated[str, Meta(min_length=1, max_length=64, description="From `approval_list`")]
    approve: bool
    reason: Annotated[str, Meta(max_length=MAX_REASON, description="For the client, if it is denied")] = ""
    who: Annotated[str, Meta(min_length=1, max_length=200, description="Who decides")] = "operator"
    operation: Annotated[_Name, Meta(description="Operation that this is about, for the audit log; checked")] = ""
    asker_name: Annotated[_Name, Meta(description="Whose call it is, for the audit log; checked")] = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a call."""

    id: str
    approved: bool
    by: str
    reason: str = ""


@internal.write("approval_wait", idempotent=True, deadline_s=8 * 86_400)
class ApprovalWait(Params[Decision], frozen=True, kw_only=True):
    """Wait until a call of a client is approved or denied. A repetition of the call finds the same pending approval, or
    the decision about it, unless another call has used that."""

    wait: Annotated[_Name, Meta(description="Names this wait; the same after a death of the service")]
    operation: _Name
    is_mounted: Annotated[bool, Meta(description="Whether the parameters are a `MountRequest`")] = False
    who: _Name
    client: Annotated[str, Meta(max_length=64, description="Identifies the client's grant; empty if it has none")] = ""
    session: _Name = ""
    source: _Name = ""
    target: Annotated[str, Meta(max_length=1024)] = ""
    params: Annotated[bytes, Meta(description="Parameters as msgpack, or their beginning")]
    size: Annotated[int, Meta(ge=0, description="Bytes of all parameters")]
    digest: Annotated[str, Meta(max_length=128, description="Of the parameters, if only their beginning is sent")] = ""
    key: Annotated[str, Meta(max_length=256, description="Stands for the idempotency key; empty for none")] = ""
    timeout_s: Annotated[float, Meta(gt=0)]
    allow_on_time_out: bool = False
    elicit: Annotated[bool, Meta(description="Whether to ask the client too")] = True
