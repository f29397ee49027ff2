"""Operations of `approvals` that only the page calls."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import Params
from proto.ops.approvals import operator


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All parameters of a call that waits."""

    id: str
    operation: str
    parameters: Annotated[dict[str, Any] | None, Meta(description="Exactly as they would be carried out")] = None
    why: Annotated[str, Meta(description="Why there are none")] = ""


@operator.read("approval_show", deadline_s=10)
class ApprovalShow(Params[WaitingCall], frozen=True, kw_only=True):
    """Return the parameters of a call that waits for an approval, whole and unchanged."""

    id: Annotated[str, Meta(min_length=1, max_length=64, description="From `approval_list`")]
