"""The storms. Each is made by a function, once a step, with the random numbers of the run."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Sequence

import trio

from services.mounts.torture.arguments import huge
from services.mounts.torture.client import GREETING, Client, Gone, encoded
from services.mounts.torture.growth import growth
from services.mounts.torture.storm import Step, Storm

MANY = 200
HUGE = 1 << 20
WRITERS = 4
MOST_WRITES = 12
"""A kill comes after so many writes, or fewer."""


async def kills(storm: Storm) -> None:
    """Kill it while calls, and writes, are in flight; what was acknowledged must be there for the next process."""
    client = await storm.client()
    whole = storm.chance.random() < 0.5
    writers = storm.chance.choice((1, WRITERS)) if storm.writes is not None else 0
    storm.doing = f"kill -9 of {'all its processes' if whole else 'the process that was started'}"
    async with trio.open_nursery() as nursery:
        if storm.writes is not None:
            for _ in range(writers):
                nursery.start_soon(storm.writes.keep_making, client)
        try:
            for _ in range(storm.chance.randint(1, 20)):
                await storm.probe(client)
        except Gone:
            await storm.settle()
            return
        if storm.writes is not None:
            await storm.writes.acknowledged(storm.chance.randint(1, MOST_WRITES), client)
            for _ in range(5):
                await storm.probe(client)
        await trio.sleep(storm.chance.choice((0, 0.002, 0.05)) * storm.chance.random())
        if client.is_over:
            await storm.settle()
            return
        client.is_expected_to_end = True
        client.process.send(signal.SIGKILL, whole=whole)
        await client.process.ended.wait()
        await client.end()
    await storm.drop(f"after {storm.doing}")
    after = await storm.client()
    if storm.writes is not None:
        how = "one write at a time" if writers == 1 else f"{writers} writes at once"
        await storm.writes.check(after, storm.options.limit_s, storm.now, how)


async def stops(storm: Storm) -> None:
    """Stop it for a while."""
    storm.doing = "SIGSTOP and SIGCONT"
    stopped_s = storm.chance.uniform(0.3, 1.5)

    async def sending(client: Client) -> None:
        for _ in range(5):
            await storm.probe(client)
        client.process.send(signal.SIGSTOP, whole=True)
        try:
            for _ in range(20):
                await storm.probe(client)
            await trio.sleep(stopped_s)
        finally:
            client.process.send(signal.SIGCONT, whole=True)

    await storm.sent(sending)


async def slow(storm: Storm) -> None:
    """Read nothing for some seconds, while calls are made."""
    storm.doing = "a time in which nothing was read"
    paused_s = storm.chance.uniform(1, 3)

    async def later(client: Client) -> None:
        await trio.sleep(paused_s)
        client.resume()

    async def sending(client: Client) -> None:
        client.pause()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later, client)
            for _ in range(MANY):
                await client.ask("tools/list")
                await storm.probe(client)

    await storm.sent(sending)


async def floods(storm: Storm) -> None:
    """Send much at once."""

    async def many(client: Client) -> None:
        for _ in range(MANY):
            await storm.probe(client)

    async def odd_ids(client: Client) -> None:
        odd = [2**53 - 1, -1, 0, "", " ", "ü€😀", "x" * 2000, "1", "null", 10**6, *(f"id-{n}" for n in range(20))]
        storm.chance.shuffle(odd)
        for number in odd:
            await storm.probe(client, number=number)

    async def huge_arguments(client: Client) -> None:
        for probe in storm.probes[:3]:
            await client.call(probe.call.tool, huge(probe.schema, probe.call.arguments, HUGE))
        await client.call("linckia_no_such_tool", {"text": "x" * HUGE})

    async def notifications(client: Client) -> None:
        for n in range(10 * MANY):
            params = {"requestId": f"never-{n}"} if n % 2 else {"progressToken": n, "progress": n}
            await client.tell("notifications/cancelled" if n % 2 else "notifications/progress", params)
            storm.report.tally(storm.now).notifications += 1
        await storm.probe(client)

    async def writes(client: Client) -> None:
        assert storm.writes is not None
        for _ in range(10):
            await storm.writes.make(client)

    kinds = [
        (f"{MANY} calls at once", many), ("ids of odd forms", odd_ids), ("arguments of 1 MiB", huge_arguments),
        ("2000 notifications", notifications),
    ]  # fmt: skip
    if storm.writes is not None:
        kinds.append(("10 writes at once", writes))
    await _each(storm, kinds)
    if storm.writes is not None:
        await storm.writes.check(await storm.client(), storm.options.limit_s, storm.now, "10 writes at once")


async def torn(storm: Storm) -> None:
    """Send right messages in unusual pieces."""
    chance = storm.chance

    def line(client: Client, what: str) -> bytes:
        params = {"name": "linckia_no_such_tool_ü€😀", "arguments": {"text": "ü€😀" * 20}}
        number = client.next_id()
        client.expect(number, what)
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        return json.dumps(message, ensure_ascii=False).encode() + b"\n"

    async def cut(client: Client) -> None:
        for _ in range(3):
            whole = line(client, "a call that came in pieces")
            at = sorted(chance.sample(range(1, len(whole)), chance.randint(1, 3)))
            pieces = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
            await client.write(*pieces, pause_s=chance.uniform(0.02, 0.1))

    async def within_a_character(client: Client) -> None:
        whole = line(client, "a call that was cut within a character")
        at = whole.index("€".encode()) + 1
        await client.write(whole[:at], whole[at:], pause_s=0.05)

    async def bytewise(client: Client) -> None:
        whole = encoded({"id": client.next_id(), "method": "ping"})
        client.expect(json.loads(whole)["id"], "a ping that came byte by byte")
        await client.write(*(whole[n : n + 1] for n in range(len(whole))), pause_s=0.001)

    async def together(client: Client) -> None:
        await client.write(b"".join(line(client, "one of several calls in one write") for _ in range(10)))

    async def across(client: Client) -> None:
        """Two messages in writes that do not end where they do."""
        whole = line(client, "a call of two in two writes") + line(client, "a call of two in two writes")
        at = chance.randint(len(whole) // 2 + 1, len(whole) - 1)
        await client.write(whole[:at], whole[at:], pause_s=0.05)

    async def crlf(client: Client) -> None:
        await client.write(line(client, "a call that ended with CRLF")[:-1] + b"\r\n")

    async def blank(client: Client) -> None:
        await client.write(b"\n\n  \n" + line(client, "a call after blank lines") + b"\n\r\n")
        await client.ask("ping", what="a ping after blank lines")

    kinds = [
        ("a message in pieces", cut), ("a cut within a character", within_a_character),
        ("a message byte by byte", bytewise),
        ("ten messages in one write", together), ("messages cut across writes", across), ("a line with CRLF", crlf),
        ("blank lines", blank),
    ]  # fmt: skip
    await _each(storm, kinds)


def rubbish_lines(number: int) -> list[tuple[str, bytes]]:
    """Return lines that are no valid requests; some have this id or one of the next two."""

    def ping(number: int, text: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%d,"method":"ping","params":{"a":"%b"}}\n' % (number, text)

    def progress(value: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%b}}\n' % value

    return [
        ("a line that is no JSON", b"this is no JSON\n"),
        ("half of a message", b'{"jsonrpc": "2.0", "id": 1, "method": "pi\n'),
        ("JSON that is no object", b'5\nnull\n"text"\ntrue\n'),
        ("an empty object and an empty list", b"{}\n[]\n"),
        ("a list of numbers", b"[1, 2, 3]\n"),
        ("a line of invalid UTF-8", b"\xff\xfe\x00\x80\xc0\n"),
        ("invalid UTF-8 in a request", ping(number, b"\xff\xc3")),
        ("half of a surrogate pair", ping(number + 1, b"\\ud800")),
        ("NUL bytes", b"\0\0\0\n"),
        ("lists nested 100,000 deep", b"[" * 100_000 + b"\n"),
        ("a line of 1 MiB that is no JSON", b"x" * HUGE + b"\n"),
        ("a request without a method", b'{"jsonrpc":"2.0","id":%d}\n' % (number + 2)),
        ("an answer to nothing", b'{"jsonrpc":"2.0","id":987654321,"result":{}}\n'),
        ("a number out of range", progress(b"1e999")),
        ("a number of 5000 digits", progress(b"9" * 5000)),
    ]


RUBBISH = len(rubbish_lines(0))


async def rubbish(storm: Storm) -> None:
    """Send what is no message. No answer is owed, but to the ping that follows."""
    for n in storm.chance.sample(range(RUBBISH), RUBBISH):

        async def sending(client: Client, n: int = n) -> None:
            numbers = [client.next_id() for _ in range(3)]
            for number in numbers:
                client.expect(number, "an invalid request", must=False)
            storm.doing, line = rubbish_lines(numbers[0])[n]
            await client.write(line)
            await client.ask("ping", what="a ping")

        await storm.sent(sending)


async def protocol(storm: Storm) -> None:
    """Send valid messages that ask for what is wrong, and what comes at the wrong time."""

    async def unknown(client: Client) -> None:
        for method in ("linckia/no_such_method", "", "tools", "tools/call/x"):
            await client.ask(method, {}, what=f"the unknown method {method!r}")
        await client.call("linckia_no_such_tool", {})
        await client.call("", {})

    async def wrong_params(client: Client) -> None:
        wrong: list[object] = [
            None, {}, {"name": 5, "arguments": {}}, {"name": None}, {"arguments": {}},
            *({"name": probe.call.tool, "arguments": bad} for probe in storm.probes[:2] for bad in ("text", [1], 5)),
        ]  # fmt: skip
        for params in wrong:
            await client.ask("tools/call", params, what=f"tools/call with the parameters {json.dumps(params)[:60]}")
        await client.ask("tools/list", {"cursor": "no such cursor"}, what="tools/list with an unknown cursor")

    async def ids_twice(client: Client) -> None:
        number = client.next_id()
        await storm.probe(client, number=number)
        await storm.probe(client, number=number)

    async def cancelled(client: Client) -> None:
        for _ in range(10):
            number = client.next_id()
            await storm.probe(client, number=number, must=False)
            await client.tell("notifications/cancelled", {"requestId": number, "reason": "storm"})
        await client.ask("ping", what="a ping")

    async def greeted_again(client: Client) -> None:
        await client.ask("initialize", GREETING, what="a second `initialize`")

    kinds = [
        ("unknown methods and tools", unknown), ("wrong parameters", wrong_params), ("an id used twice", ids_twice),
        ("cancelled calls", cancelled), ("a second `initialize`", greeted_again),
    ]  # fmt: skip
    await _each(storm, kinds)
    storm.doing = "calls before `initialize`"
    client = await storm.start()
    try:
        for _ in range(3):
            await client.ask("tools/list", must=False)
            await storm.probe(client, must=False)
        if not await client.greet(6 * storm.options.limit_s) and not client.is_over:
            storm.note("hung", "`initialize`, after calls that came before it")
            await storm.drop()
            return
        await storm.probe(client)
    except Gone:
        pass
    await storm.settle()


async def ends(storm: Storm) -> None:
    """End as clients do, with calls in flight. The server has to end, and everything that it has started."""
    for is_dead in storm.chance.sample((False, True), 2):
        client = await storm.client()
        storm.doing = "the death of the client" if is_dead else "the end of stdin"
        try:
            for _ in range(10):
                await storm.probe(client)
            await trio.sleep(storm.chance.uniform(0, 0.02))
        except Gone:
            await storm.settle()
            continue
        client.is_expected_to_end = True
        await client.process.stdin.aclose()
        if is_dead:
            await client.process.close()
        if not await client.process.gone(storm.options.limit_s):
            storm.note("stays", f"{storm.options.limit_s:.0f} s after {storm.doing}, with calls in flight")
            await storm.drop()
            continue
        await storm.drop(f"after {storm.doing}")


async def _each(storm: Storm, kinds: Sequence[tuple[str, Callable[[Client], Awaitable[None]]]]) -> None:
    for doing, sending in storm.chance.sample(kinds, len(kinds)):
        storm.doing = doing
        await storm.sent(sending)


STEPS: dict[str, Step] = {
    "kills": kills, "stops": stops, "slow": slow, "floods": floods, "torn": torn, "rubbish": rubbish,
    "protocol": protocol, "ends": ends, "growth": growth,
}  # fmt: skip
