"""`linckia approve`: calls of clients that wait for a person, and the person's decision."""

from __future__ import annotations

import argparse
import getpass
from typing import TYPE_CHECKING

from proto.control.client import CallFailed, Client
from proto.control.commands import AddCommand, Failed, Group, Usage, add_json
from proto.control.terminal import connect, say, show_json

if TYPE_CHECKING:
    from proto.ops.approvals import Approval, ApprovalList

PREVIEW_CHARS = 400

_NOBODY = "operator"
_NONE = "No call waits for an approval."

APPROVE_EPILOG = """\
examples:
  linckia approve                              list the calls that wait, and what each would do
  linckia approve 4f2a91                       let one through
  linckia approve 4f2a91 --deny --reason 'not on a Friday'

`[approvals]` in the settings says which calls wait.
"""

GROUP = Group.CONNECT


def add(command: AddCommand) -> None:
    """Declare `approve`."""
    approve = command("approve", run_approve, "list the calls that wait for an approval, or decide", APPROVE_EPILOG)
    approve.add_argument("id", metavar="ID", nargs="?", help="the call to decide about (default: list them)")
    approve.add_argument("--deny", action="store_true", help="deny it instead")
    approve.add_argument("--reason", metavar="TEXT", help="the reason, which the client gets if it is denied")
    add_json(approve)


def run_approve(arguments: argparse.Namespace) -> int:
    """List what waits, or decide about one call. Raises Usage, Failed, ControlError."""
    from proto.ops.approvals import ApprovalDecide

    if arguments.id is None and (arguments.deny or arguments.reason):
        raise Usage("--deny and --reason need the ID of the call, which `linckia approve` shows")
    if arguments.id is None:
        return _list(arguments)
    with connect(arguments) as client:
        # What the call is about, so that the audit log has it with the decision.
        about = next((each for each in _found(client).pending if each.id == arguments.id), None)
        done = client.call(
            ApprovalDecide(
                id=arguments.id,
                approve=not arguments.deny,
                reason=arguments.reason or "",
                who=_user(),
                operation=_name(about) if about else "",
                asker_name=about.asker if about else "",
            )
        )
    if arguments.json:
        show_json(done)
    else:
        say(done.message)
    return 0


def _found(client: Client) -> ApprovalList:
    """Return the pending approvals. Raises Failed: the settings choose no calls."""
    from proto.ops.approvals import ApprovalListParams

    try:
        return client.call(ApprovalListParams())
    except CallFailed as error:
        if error.failure.get("kind") == "unknown_operation":
            raise Failed("no call has to wait: set `require` in [approvals] of the settings, and restart") from None
        raise


def _name(each: Approval) -> str:
    return each.tool or each.operation


def _user() -> str:
    try:
        return getpass.getuser() or _NOBODY
    except (OSError, KeyError):
        return _NOBODY


def _list(arguments: argparse.Namespace) -> int:
    with connect(arguments) as client:
        found = _found(client)
    if arguments.json:
        show_json(found)
        return 0
    if not found.pending:
        say(_NONE)
        return 0
    for each in found.pending:
        name, source = _name(each), f" for {each.source}" if each.source else ""
        gone = "" if each.waiting else "; the call no longer waits, a repetition finds the decision"
        then = "allowed" if each.on_time_out == "allow" else "denied"
        say(
            [(each.id, "bold"), f"  {name} of {each.asker}{source}"],
            f"    {each.target}" if each.target else "    (no target)",
            f"    {_cut(each.preview)}",
            (f"    {then} in {each.left_s:.0f} s if nobody decides{gone}", "dim"),
        )
    say("", "Decide with `linckia approve ID`, or `linckia approve ID --deny --reason TEXT`.")
    return 0


def _cut(text: str) -> str:
    line = " ".join(text.split("\n"))
    return line if len(line) <= PREVIEW_CHARS else f"{line[: PREVIEW_CHARS - 1]}…"
