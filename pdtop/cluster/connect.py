"""A TCP connection to a host by whichever of its addresses answers first; nothing stays open when cancelled.

Not asyncio's own happy eyeballs: those of Python 3.11 drop the winner's socket, open, if they are cancelled
in the moment between its success and the waiter's turn, as every stop of the poller may do.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from itertools import chain, zip_longest

#: So long an address may take before the next one is tried beside it (RFC 8305).
NEXT_AFTER_S = 0.25

Place = tuple[socket.AddressFamily, int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]


async def connect(host: str, port: int) -> socket.socket:
    """A connected socket, not blocking; the caller's.

    Raises:
        OSError: the name is not known, or the error of the last address.
    """
    places = await _places(host, port)
    if len(places) == 1:
        return await _dial(places[0])
    dials: list[asyncio.Task[socket.socket]] = []
    waiting: set[asyncio.Task[socket.socket]] = set()
    winner: asyncio.Task[socket.socket] | None = None
    try:
        for place in places:
            dials.append(asyncio.create_task(_dial(place)))
            more = len(dials) < len(places)
            waiting.add(dials[-1])
            while waiting and winner is None:
                done, waiting = await asyncio.wait(
                    waiting, timeout=NEXT_AFTER_S if more else None, return_when=asyncio.FIRST_COMPLETED
                )
                winner = next((dial for dial in done if dial.exception() is None), None)
                if more:
                    break
            if winner is not None:
                return winner.result()
        return dials[-1].result()  # raises
    finally:
        for dial in dials:
            if dial is not winner:
                dial.cancel()
                dial.add_done_callback(_close)


async def _places(host: str, port: int) -> Sequence[Place]:
    """The host's addresses, families in turn, so that one broken family costs only one wait."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: asking for it takes a thread
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = [(family, proto, address) for family, _, proto, _, address in found]
    first = [place for place in places if place[0] == places[0][0]]
    rest = [place for place in places if place[0] != places[0][0]]
    return [place for place in chain.from_iterable(zip_longest(first, rest)) if place is not None]


async def _dial(place: Place) -> socket.socket:
    family, proto, address = place
    sock = socket.socket(family, socket.SOCK_STREAM, proto)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _close(dial: asyncio.Task[socket.socket]) -> None:
    """What a dial brings that nobody waits for any more."""
    if not dial.cancelled() and dial.exception() is None:
        dial.result().close()
