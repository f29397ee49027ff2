"""The service `transcripts`: reads its settings, opens the database, feeds the search, and serves calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, cast

import apsw
import msgspec
from msgspec import Meta, Raw

from proto.errors import InvalidParams, OperationError
from proto.wire.frames import Written
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.shared.forgetting import request_scrub
from services.shared.linear import BadPattern
from services.transcripts import conversations, forest
from services.transcripts.answers import checkout, find_turns, history, page, spent, tree, written
from services.transcripts.database import Deleted, delete, delete_from, open_database
from services.transcripts.feed import TurnFeed
from services.transcripts.following import Following
from services.transcripts.importing import Importing, release
from services.transcripts.ingest import Ingest
from services.transcripts.joining import Joining
from services.transcripts.listing import Listing
from services.transcripts.messages import Stripper
from services.transcripts.operations import conversations as ops
from services.transcripts.operations import pages
from services.transcripts.prices import Price, Prices
from services.transcripts.redaction import RULES, Redactor, Rule
from services.transcripts.search import Searching
from services.transcripts.transfer import Transfer

HISTORIES_BYTES = 32 * 1024 * 1024
"""Limit for one answer with many conversations."""

DELETE_PATIENCE_S = 30.0
"""How long a deletion waits for the search to scrub its files; after that, the answer says that it is not done."""


class RedactRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A custom pattern; only its group `secret` is masked if it has one, else the whole match."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]


class TranscriptsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings table `[services.transcripts]`, or `[transcripts]` for short."""

    enabled: Annotated[bool, Meta(description="Whether conversations are kept and searched at all")] = True
    redact: Annotated[bool, Meta(description="Whether secrets are masked before anything is kept")] = True
    redact_skip: Annotated[list[str], Meta(description="Names of rules that are not applied")] = []
    redact_rules: Annotated[list[RedactRule], Meta(description="Further rules")] = []
    follow: Annotated[
        list[str], Meta(description="Whose conversations are kept as they are written: names of agents, or folders")
    ] = []
    prices: Annotated[dict[str, Price], Meta(description="Prices of models in addition to the built-in table")] = {}
    strip_tags: Annotated[list[str], Meta(description="Additional tags whose content belongs to the agent")] = []
    search_patience_s: Annotated[
        float, Meta(ge=0, description="How long a search waits until newly stored turns can be found")
    ] = 2.0


def read_settings(given: Mapping[str, Any]) -> TranscriptsSettings:
    """Parse the settings. Raises InvalidParams, which names the wrong setting."""
    try:
        settings = msgspec.convert(given, TranscriptsSettings)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"settings of transcripts: {error}") from None
    known = sorted(rule.name for rule in RULES)
    for name in settings.redact_skip:
        if name not in known:
            where = "settings of transcripts: redact_skip"
            raise InvalidParams(f"{where}: there is no rule {name!r}; rules: {', '.join(known)}")
    return settings


def redactor_of(settings: TranscriptsSettings) -> Redactor | None:
    """Return the redactor, or None if redaction is switched off.

    Raises InvalidParams if a custom pattern is not a regular expression.
    """
    if not settings.redact:
        return None
    return _made(tuple(settings.redact_skip), tuple(settings.redact_rules))


# Compiled by `prepare` and reused when the service starts, because it is the longest step of the start.
@functools.lru_cache(maxsize=1)
def _made(skip: tuple[str, ...], more: tuple[RedactRule, ...]) -> Redactor:
    rules = []
    for index, rule in enumerate(more):
        try:
            rules.append(Rule(rule.name, rule.pattern))
        except BadPattern as error:
            where = f"settings of transcripts: redact_rules[{index}].pattern"
            raise InvalidParams(f"{where} is not a regular expression (RE2): {error}") from None
    return Redactor(skip=skip, more=rules)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; it is ready once the database is open, even a damaged one."""
    settings = read_settings(env.settings)
    redactor = redactor_of(settings)
    strip = Stripper(settings.strip_tags)
    database = await env.opened(open_database, env.data_dir / "transcripts.db", env.damaged)
    env.keeps_keys_in(database)
    feed = TurnFeed(env, database, strip)
    ingest = Ingest(database, redactor, strip, feed.outbox.hurry)
    importing = Importing(database, ingest)
    env.info(redaction="on" if redactor else "off", follows=", ".join(env.roots))
    env.background.start_soon(feed.run)
    if settings.follow:
        env.background.start_soon(Following(env, importing).run)
    searching = Searching(database, feed, settings.search_patience_s)
    always = functools.partial(_made, tuple(settings.redact_skip), tuple(settings.redact_rules))
    prices = Prices(settings.prices)
    carrying, listing = Transfer(database, ingest, always), Listing(database, strip, prices)
    joining = Joining(database, carrying, feed)
    yield Handlers(Conversations(database, feed, prices), ingest, importing, carrying, searching, listing, joining)


def prepare(settings: Mapping[str, Any]) -> None:
    """Compile the redaction patterns."""
    redactor_of(read_settings(settings))


class Conversations:
    """The operations that read and delete conversations."""

    def __init__(self, database: Database, feed: TurnFeed, prices: Prices) -> None:
        self._database = database
        self._feed = feed
        self._prices = prices

    @handles(ops.TranscriptDelete)
    async def delete_turn(self, params: ops.TranscriptDelete, ctx: Context) -> ops.DeletedTurns:
        if params.hash is None and params.conversation is None:
            raise InvalidParams("name what to delete: `hash`, `conversation`, or both", field="hash")
        if params.conversation is not None and params.bar:
            raise InvalidParams("`bar` only works with `hash`: it keeps a turn out of every conversation", field="bar")

        def change(db: apsw.Connection) -> Deleted:
            node = None if params.hash is None else _there(db, params.hash)
            id_ = None
            if params.conversation is not None and (id_ := conversations.named(db, params.conversation)) is None:
                raise OperationError(f"conversation not found: {params.conversation}")
            request_scrub(db)
            if id_ is not None:
                node_id = None if node is None else node.node_id
                gone = delete_from(db, id_, node_id, descendants=params.descendants)
            else:
                assert node is not None
                gone = delete(db, node.node_id, descendants=params.descendants, bar=params.bar)
            release(db)
            return gone

        def answer(gone: Deleted, *, scrubbed: bool = True) -> ops.DeletedTurns:
            pending = 0 if scrubbed else len(gone.hashes)
            return ops.DeletedTurns(
                deleted=len(gone.hashes), placeholders=gone.kept, shared=gone.shared, search_pending=pending
            )

        gone = await self._database.answer(change, answer)
        self._feed.outbox.hurry()
        await self._database.checkpoint()
        return answer(gone, scrubbed=await self._feed.scrubbed(DELETE_PATIENCE_S))

    @handles(ops.TranscriptCheckout)
    async def check_out(self, params: ops.TranscriptCheckout, ctx: Context) -> Written:
        if params.cursor is not None and params.form is not ops.Form.TEXT:
            raise InvalidParams("`cursor` only works with `form` text: messages are returned in full", field="cursor")
        # Encoded in the thread, like all answers that may be large.
        return await self._database.read(
            lambda db: written(checkout(db, _there(db, params.hash), params.form, params.cursor))
        )

    @handles(ops.TranscriptNode)
    async def node(self, params: ops.TranscriptNode, ctx: Context) -> ops.NodeView | None:
        def query(db: apsw.Connection) -> ops.NodeView | None:
            node = forest.find(db, params.hash)
            if node is None:
                return None
            parent = None if node.parent is None else forest.node_ref(db, node.parent)
            return ops.NodeView(
                hash=node.hash,
                parent_hash=None if parent is None else parent.hash.hex(),
                bucket=node.bucket,
                stop_reason=node.stop_reason,
                usage=node.tokens,
                project=node.project,
            )

        return await self._database.read(query)

    @handles(ops.TranscriptHistory)
    async def history(self, params: ops.TranscriptHistory, ctx: Context) -> Written | None:
        def query(db: apsw.Connection) -> Written | None:
            node = forest.find(db, params.hash)
            return None if node is None else written(history(db, node.node_id, node.hash))

        return await self._database.read(query)

    @handles(pages.TranscriptPage)
    async def page(self, params: pages.TranscriptPage, ctx: Context) -> pages.ConversationPage | None:
        def query(db: apsw.Connection) -> pages.ConversationPage | None:
            node = forest.find(db, params.hash)
            if node is None:
                return None
            found, ids = page(db, node, params)
            return msgspec.structs.replace(found, spent=spent(db, node, ids, self._prices)) if params.summed else found

        return await self._database.read(query)

    @handles(pages.TranscriptFind)
    async def find(self, params: pages.TranscriptFind, ctx: Context) -> pages.FoundTurns | None:
        def query(db: apsw.Connection) -> pages.FoundTurns | None:
            node = forest.find(db, params.hash)
            return None if node is None else find_turns(db, node, params)

        return await self._database.read(query)

    @handles(ops.TranscriptTree)
    async def tree(self, params: ops.TranscriptTree, ctx: Context) -> ops.Tree | None:
        def query(db: apsw.Connection) -> ops.Tree | None:
            node = forest.find(db, params.hash)
            return None if node is None else tree(db, node.root, params.limit)

        return await self._database.read(query)

    @handles(ops.TranscriptHistories)
    async def histories(self, params: ops.TranscriptHistories, ctx: Context) -> Written:
        def query(db: apsw.Connection) -> Written:
            found: list[Raw] = []
            left = HISTORIES_BYTES
            for leaf, hash_ in forest.leaves(db, params.limit):
                found.append(Raw(written(history(db, leaf, hash_)).json))
                left -= len(memoryview(found[-1]))
                if left < 0:
                    break
            return written(ops.Histories(histories=cast("list[ops.History]", found), total=forest.counts(db)[2]))

        return await self._database.read(query)

    @handles(ops.TranscriptStats)
    async def stats(self, params: ops.TranscriptStats, ctx: Context) -> ops.ForestStats:
        nodes, roots, leaves = await self._database.read(forest.counts)
        return ops.ForestStats(total_nodes=nodes, root_count=roots, leaf_count=leaves)


def _there(db: apsw.Connection, hash_: str) -> forest.StoredMessage:
    node = forest.find(db, hash_)
    if node is None:
        raise OperationError(f"node not found: {hash_}")
    return node
