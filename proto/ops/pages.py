"""JSON resources, most of them under the reference's `synthesis://`, and paging of the lists among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from proto.operation import Access, Params, Resource, Role, operation

P = TypeVar("P", bound=Params[object])

JSON = "application/json"

Offset = Annotated[int, Meta(ge=0, le=2**53, description="Entries to skip")]
PageLimit = Annotated[int, Meta(ge=1, le=10_000, description="Items at most")]


class Paged(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a list: `?offset=100&limit=50` may follow its URI."""

    offset: Offset = 0
    limit: PageLimit = 100


class Page(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Position of a page in its list."""

    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


class Place(TypedDict):
    """The fields of `Page`."""

    total: int
    offset: int
    has_more: bool
    next: str


def place(uri: str, params: Paged, count: int, total: int) -> Place:
    """Return the position of a page with `count` of the `total` items of the list at `synthesis://` + `uri`."""
    end = params.offset + count
    following = f"synthesis://{uri}?offset={end}&limit={params.limit}" if end < total else ""
    return Place(total=total, offset=params.offset, has_more=end < total, next=following)


def resource(
    name: str,
    uri: str,
    title: str,
    *,
    mime_type: str = JSON,
    deadline_s: float = 30,
    within_roots: bool = False,
    completion: str | None = None,
    is_own: bool = False,
) -> Callable[[type[P]], type[P]]:
    """Declare the decorated `Params[Result]` as the resource `title` at `synthesis://` + `uri`.

    The first part of the operation's name is its service. With `is_own` (the reference has no such resource) it is also
    at `linckia://` + `uri`.
    """

    def declare(params: type[P]) -> type[P]:
        query = ("offset", "limit") if issubclass(params, Paged) else ()
        reference = f"synthesis://{uri}"
        at = Resource(
            uri=f"linckia://{uri}" if is_own else reference, former=(reference,) if is_own else (), name=title,
            mime_type=mime_type, query=query,
        )  # fmt: skip
        service, _, _ = name.partition("_")
        declared = operation(
            name, service=service, access=Access.READ, deadline_s=deadline_s, role=Role.RESOURCE,
            surfaces=("files",), resource=at, within_roots=within_roots, completion=completion,
        )  # fmt: skip
        return declared(params)

    return declare
