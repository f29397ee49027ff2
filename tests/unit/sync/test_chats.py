"""Conversations of several machines become the same, whatever is joined first and wherever it is interrupted."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams
from services.transcripts.operations.carry import TranscriptExport
from services.transcripts.operations.conversations import TranscriptDelete
from services.transcripts.operations.joining import TranscriptFacts, TranscriptJoin, TranscriptTurns
from tests.in_process import Bench
from tests.unit.sync.sides import Interrupted, join
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_layouts import CLAUDE, take_in
from tests.unit.transcripts.writers.rig import listed, records, session, stored
from tests.unit.transcripts.writers.test_way_back import said_next


async def exported(bench: Bench) -> dict[str, Any]:
    """All turns with what both machines must have alike."""
    found: dict[str, Any] = {}
    after = 0
    while (page := await bench.call(TranscriptExport(after=after))).turns:
        for each in page.turns:
            turn = each.turn
            held = sorted(one.name for one in turn.conversations)
            calls = sorted(call.key for one in turn.conversations for call in one.calls)
            is_reply = turn.reply and not turn.gone
            found[turn.hash] = (turn.content, turn.gone, is_reply, turn.parent_hash, turn.prompt, held, calls)
        after = page.next
    return found


async def alive(bench: Bench) -> set[str]:
    return {name for name, (_, gone, *_) in (await exported(bench)).items() if not gone}


async def test_turns_prompts_and_usage_come_with_their_parents(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    async with serving(tmp_path / "a") as here, serving(tmp_path / "b") as there:
        turn = payload([{"role": "system", "content": "be kind"}, user("hello")], "hi")
        turn["response"]["usage"] = usage
        await post(here, turn)
        # The other side knows the reply only as an echo.
        system = {"role": "system", "content": "be kind"}
        await post(there, payload([system, user("hello"), assistant("hi"), user("x")], "y"))
        tally = await join("chats", here, there)
        assert (tally.equal, tally.left) == (True, 0)
        assert await exported(here) == await exported(there)
        assert sum(reply for _, _, reply, *_ in (await exported(there)).values()) == 2
        again = await join("chats", there, here)
        assert (again.equal, again.came + again.went) == (True, 0)


async def test_a_deleted_conversation_goes_on_elsewhere_only_with_what_is_new(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as here, serving(tmp_path / "b") as there:
        first = (await post(here, payload([user("one")], "1"))).head_hash
        await join("chats", here, there)
        (name,) = (await exported(here))[first][5]
        await here.call(TranscriptDelete(conversation=name))
        history = [user("one"), assistant("1"), user("two")]
        second = (await post(there, payload(history, "2"))).head_hash
        tally = await join("chats", here, there)
        assert (tally.equal, tally.deleted_there) == (True, 2)
        assert await exported(here) == await exported(there)
        assert first not in await alive(there)
        assert second in await alive(here)


async def test_a_place_holder_that_a_file_repeats_leaves_nothing_to_join(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as here, serving(tmp_path / "b") as there:
        await take_in(here, CLAUDE)
        (old,) = await listed(here)
        to = session()
        copy = records("codex", await stored(here, old), to)
        await take_in(here, [*copy, *said_next("codex", copy, to.id)], source="/x", cut=len(copy))
        await join("chats", here, there)
        # The continuation keeps their places.
        deleted = await here.call(TranscriptDelete(conversation=old.id))
        assert deleted.placeholders > 0
        await take_in(here, CLAUDE, source="/y")
        await join("chats", here, there)
        for sides in ((here, there), (there, here)):
            tally = await join("chats", *sides)
            assert (tally.equal, tally.came + tally.went) == (True, 0)
        assert await alive(here) == await alive(there)


async def test_barred_content_is_barred_on_both(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as here, serving(tmp_path / "b") as there:
        await join("chats", here, there)
        head = (await post(here, payload([user("secret")], "no"))).head_hash
        await here.call(TranscriptDelete(hash=head, bar=True))
        assert (await join("chats", here, there)).equal
        await post(there, payload([user("secret")], "no"))
        assert (await join("chats", here, there)).equal
        assert head not in await alive(there) | await alive(here)


async def test_a_turn_of_another_content_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as here, serving(tmp_path / "b") as there:
        head = (await post(here, payload([user("one")], "1"))).head_hash
        found = (await here.call(TranscriptTurns(hashes=list((await exported(here)).keys())))).turns
        forged = [each if each.hash != head else type(each)(**{**fields(each), "model": "other"}) for each in found]
        with pytest.raises(InvalidParams, match="hash does not match"):
            await there.call(TranscriptJoin(turns=forged))
        assert await exported(there) == {}
        # A turn whose parent is missing is left, not stored elsewhere.
        (last,) = [each for each in found if each.hash == head]
        joined = await there.call(TranscriptJoin(turns=[last]))
        assert (joined.left, await exported(there)) == (1, {})


def fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


async def test_comparing_reads_few_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as here:
        for number in range(50):
            await post(here, payload([user(f"question {number}")], "answer"))
        facts = await here.call(TranscriptFacts())
        assert (len(facts.buckets), facts.facts) == (256, [])
        listed = await here.call(TranscriptFacts(buckets=list(range(256))))
        assert listed.covered == list(range(256))
        assert {fact.kind for fact in listed.facts} == {"turn", "member"}


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", range(80))
async def test_random_changes_on_three_machines_end_alike(tmp_path: Path, number: int) -> None:
    """Interrupted at random, before or after any call; what is deleted stays so, and all else is there."""
    chance = random.Random(number)
    async with contextlib.AsyncExitStack() as stack:
        benches = [await stack.enter_async_context(serving(tmp_path / str(each))) for each in range(3)]
        world = World(chance)
        for _ in range(6):
            for bench in benches:
                for _ in range(chance.randint(0, 4)):
                    await world.change(bench)
            for _ in range(chance.randint(1, 4)):
                here, there = chance.sample(benches, 2)
                with contextlib.suppress(Interrupted):
                    await join("chats", here, there, chance)
        for one, other in ((0, 1), (1, 2), (0, 1), (1, 2)):
            assert (await join("chats", benches[one], benches[other])).equal
        first = await exported(benches[0])
        assert [await exported(bench) for bench in benches[1:]] == [first, first]
        assert not world.dead & await alive(benches[0])
        assert world.living <= await alive(benches[0])


class World:
    """Knows which turns must be there in the end, and which must not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.talks: list[tuple[list[Json], list[str]]] = []
        self.living: set[str] = set()
        self.dead: set[str] = set()

    async def change(self, bench: Bench) -> None:
        kind = self.chance.choice(["talk", "go on", "go on", "delete", "below", "conversation", "bar"])
        if kind == "talk" or not self.talks:
            self.talks.append(([], []))
            await self.go_on(bench, *self.talks[-1])
        elif kind == "go on":
            await self.go_on(bench, *self.chance.choice(self.talks))
        else:
            await self.delete(bench, kind)

    async def go_on(self, bench: Bench, said: list[Json], heads: list[str]) -> None:
        if self.chance.random() < 0.3:
            # Another branch.
            keep = self.chance.randrange(len(heads) + 1)
            said, heads = said[: 2 * keep], heads[:keep]
            self.talks.append((said, heads))
        said.append(user(f"question {self.chance.randrange(10**9)}"))
        answer = f"answer {self.chance.randrange(10**9)}"
        head = (await post(bench, payload(said, answer))).head_hash
        said.append(assistant(answer))
        heads.append(head)
        self.living.add(head)

    async def delete(self, bench: Bench, kind: str) -> None:
        there = await exported(bench)
        _, heads = self.chance.choice(self.talks)
        known = [head for head in heads if head in there and not there[head][1]]
        if not known:
            return
        head = self.chance.choice(known)
        if kind == "conversation":
            (name, *_) = there[head][5]
            mine = {hash_ for hash_, (*_, held, _) in there.items() if name in held}
            await bench.call(TranscriptDelete(conversation=name))
        else:
            mine = {head} | (below(there, head) if kind == "below" else set())
            await bench.call(TranscriptDelete(hash=head, descendants=kind == "below", bar=kind == "bar"))
        left = await alive(bench)
        self.dead |= mine - left
        self.living -= mine
        # To go on with a talk would store its history again.
        self.talks = [(said, heads) for said, heads in self.talks if not set(heads) & mine]


def below(there: dict[str, Any], head: str) -> set[str]:
    found = {head}
    while more := {name for name, turn in there.items() if turn[3] in found} - found:
        found |= more
    return found
