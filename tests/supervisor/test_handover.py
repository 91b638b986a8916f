"""The fixed address: whole answers whatever is switched, nothing refused, nothing hidden that was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pdtop.supervisor.handover import UNAVAILABLE, Backend, HandOver

END = b"\r\n0\r\n\r\n"


class Peer:
    """A server whose connections a test plays by hand."""

    def __init__(self) -> None:
        self.pairs: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []
        self.backend = Backend("127.0.0.1", 0)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await self.pairs.put((reader, writer))


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    made = Peer()
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.backend.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for writer in made.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


class Joined:
    """A hand-over, and clients of it."""

    def __init__(self, hand_over: HandOver) -> None:
        self.hand_over = hand_over
        self.writers: list[asyncio.StreamWriter] = []

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.hand_over.port is not None
        pair = await asyncio.open_connection("127.0.0.1", self.hand_over.port)
        self.writers.append(pair[1])
        return pair


@asynccontextmanager
async def joined(backend: Backend | None, *, hold_s: float = 10.0) -> AsyncIterator[Joined]:
    hand_over = HandOver(hold_s=hold_s)
    hand_over.switch(backend)
    await hand_over.listen("127.0.0.1", 0)
    made = Joined(hand_over)
    try:
        yield made
    finally:
        hand_over.stop_listening()
        for writer in made.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        hand_over.abort()
        while hand_over.open:  # noqa: ASYNC110 - told by the loop
            await asyncio.sleep(0)


async def test_bytes_pass_in_both_directions_and_ends_are_passed_on() -> None:
    async with peer() as server, joined(server.backend) as here:
        reader, writer = await here.client()
        writer.write(b"question")
        there, back = await server.pairs.get()
        assert await there.readexactly(8) == b"question"
        back.write(b"answer")
        assert await reader.readexactly(6) == b"answer"
        assert (here.hand_over.open, server.backend.open) == (1, 1)
        writer.write_eof()
        assert await there.read() == b""
        back.write(b"last words")
        back.close()
        assert await reader.read() == b"last words"


async def test_a_large_answer_to_a_slow_client_is_whole_and_waits() -> None:
    size = 20 * 2**20
    async with peer() as server, joined(server.backend) as here:
        reader, writer = await here.client()
        writer.write(b"q")
        _, back = await server.pairs.get()
        back.write(b"x" * size)
        draining = asyncio.create_task(back.drain())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not draining.done()
        assert len(await reader.readexactly(size)) == size
        await draining


async def test_a_client_that_goes_is_noticed_behind() -> None:
    async with peer() as server, joined(server.backend) as here:
        _, writer = await here.client()
        writer.write(b"q")
        there, _ = await server.pairs.get()
        assert await there.readexactly(1) == b"q"
        writer.transport.abort()
        with suppress(ConnectionError):
            assert await there.read() == b""


async def test_new_connections_go_to_the_new_backend_and_old_ones_stay() -> None:
    async with peer() as old, peer() as new, joined(old.backend) as here:
        first, writer = await here.client()
        writer.write(b"1")
        _, back = await old.pairs.get()
        here.hand_over.switch(new.backend)
        _, second = await here.client()
        second.write(b"2")
        there, _ = await new.pairs.get()
        assert await there.readexactly(1) == b"2"
        back.write(b"still here")
        assert await first.readexactly(10) == b"still here"


async def test_a_connection_waits_for_a_backend() -> None:
    async with peer() as server, joined(None) as here:
        reader, writer = await here.client()
        writer.write(b"early")
        await asyncio.sleep(0)
        here.hand_over.switch(server.backend)
        there, back = await server.pairs.get()
        assert await there.readexactly(5) == b"early"
        back.write(b"ok")
        assert await reader.readexactly(2) == b"ok"


async def test_a_backend_that_refuses_is_tried_until_there_is_another() -> None:
    async with peer() as dead:
        pass
    async with peer() as server, joined(dead.backend) as here:
        _, writer = await here.client()
        writer.write(b"x")
        await asyncio.sleep(0.05)
        here.hand_over.switch(server.backend)
        there, _ = await server.pairs.get()
        assert await there.readexactly(1) == b"x"


async def test_without_a_backend_in_time_it_is_said_in_http() -> None:
    async with joined(None, hold_s=0.0) as here:
        reader, writer = await here.client()
        writer.write(b"POST / HTTP/1.1\r\n\r\n")
        assert await reader.read() == UNAVAILABLE
        assert b"retry-after: 1" in UNAVAILABLE
        assert here.hand_over.refused == 1


async def test_a_request_that_met_the_end_of_a_connection_is_sent_to_the_successor() -> None:
    async with peer() as old, peer() as new, joined(old.backend) as here:
        reader, writer = await here.client()
        writer.write(b"one")
        _, back = await old.pairs.get()
        back.write(b"answer")
        assert await reader.readexactly(6) == b"answer"
        here.hand_over.switch(new.backend)
        old.backend.leaving = True
        writer.write(b"two")
        await asyncio.sleep(0.02)
        back.close()  # without a word about "two"
        there, second = await new.pairs.get()
        assert await there.readexactly(3) == b"two"
        second.write(b"more")
        assert await reader.readexactly(4) == b"more"


async def test_after_a_whole_streamed_answer_the_client_stays_and_goes_on_with_the_successor() -> None:
    async with peer() as old, peer() as new, joined(old.backend) as here:
        reader, writer = await here.client()
        writer.write(b"one")
        _, back = await old.pairs.get()
        here.hand_over.switch(new.backend)
        old.backend.leaving = True
        for part in (b"5\r\nhello", END[:4], END[4:]):
            back.write(part)
            await back.drain()
            await asyncio.sleep(0.01)
        back.close()
        assert await reader.readexactly(8 + len(END)) == b"5\r\nhello" + END
        while old.backend.open:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        writer.write(b"two")
        there, _ = await new.pairs.get()
        assert await there.readexactly(3) == b"two"
        assert not reader.at_eof()


async def test_an_answer_that_was_cut_is_not_hidden() -> None:
    async with peer() as old, peer() as new, joined(old.backend) as here:
        reader, writer = await here.client()
        writer.write(b"one")
        _, back = await old.pairs.get()
        here.hand_over.switch(new.backend)
        old.backend.leaving = True
        back.write(b"5\r\nhel")
        back.close()
        assert await reader.read() == b"5\r\nhel"
        assert new.pairs.empty()


async def test_a_crash_repeats_nothing() -> None:
    async with peer() as old, peer() as new, joined(old.backend) as here:
        reader, writer = await here.client()
        writer.write(b"one")
        there, back = await old.pairs.get()
        assert await there.readexactly(3) == b"one"
        here.hand_over.switch(new.backend)
        back.transport.abort()
        assert await reader.read() == b""
        assert new.pairs.empty()


async def test_another_address_is_taken_and_the_former_is_free() -> None:
    async with peer() as server, joined(server.backend) as here:
        reader, writer = await here.client()
        before = here.hand_over.port
        await here.hand_over.listen("127.0.0.1", 0)
        assert here.hand_over.port != before
        writer.write(b"q")
        _, back = await server.pairs.get()
        back.write(b"a")
        assert await reader.readexactly(1) == b"a"
        (await asyncio.start_server(server.accept, "127.0.0.1", before)).close()
