"""Connecting by the address that answers first, and leaving nothing open whenever it is cancelled."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pdtop.cluster import connect as module
from pdtop.cluster.address import Address
from pdtop.cluster.connect import connect
from pdtop.cluster.http import Dialler


@pytest.fixture
def port() -> Iterator[int]:
    """Somebody who takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
async def dialled(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Every socket that is connected; 127.0.0.3 never answers."""
    made: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    real = loop.sock_connect

    async def connecting(sock: socket.socket, address: tuple[str, int]) -> None:
        made.append(sock)
        if address[0] == "127.0.0.3":
            await loop.create_future()
        await real(sock, address)

    monkeypatch.setattr(loop, "sock_connect", connecting)
    return made


def still_open(sockets: list[socket.socket]) -> list[socket.socket]:
    return [sock for sock in sockets if sock.fileno() != -1]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names with the addresses that they are to have."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def answer(host: str, port: int, *args: int, **more: int) -> object:
        addresses = known.get(host)
        if addresses is None:
            return real(host, port, *args, **more)
        if more.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "a name")
        return [entry for address in addresses for entry in real(address, port, *args, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return known


@pytest.mark.parametrize("host", ["127.0.0.1", "two"])
@pytest.mark.parametrize("steps", range(14))
async def test_cancelled_at_any_step_nothing_stays_open(
    host: str, steps: int, port: int, dialled: list[socket.socket], names: dict[str, list[str]]
) -> None:
    names["two"] = ["127.0.0.1", "127.0.0.2"]
    dialler = Dialler()
    asking = asyncio.create_task(dialler.get(Address.parse(f"http://{host}:{port}"), "/"))
    for _ in range(steps):
        await asyncio.sleep(0)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    dialler.close()
    for _ in range(4):  # cancelled dials and aborted transports take their turn
        await asyncio.sleep(0)
    assert still_open(dialled) == []


async def test_the_address_that_answers_wins(port: int, names: dict[str, list[str]]) -> None:
    names["half"] = ["127.0.0.2", "127.0.0.1"]  # nothing listens at the first
    with await connect("half", port) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)


async def test_a_silent_address_does_not_hold_up_the_next(
    port: int,
    names: dict[str, list[str]],
    dialled: list[socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names["slow"] = ["127.0.0.3", "127.0.0.1"]
    monkeypatch.setattr(module, "NEXT_AFTER_S", 0.0)
    with await connect("slow", port) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)
        await asyncio.sleep(0)
        assert still_open(dialled) == [sock]


async def test_if_no_address_answers_the_last_error_is_told(names: dict[str, list[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    names["none"] = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
    with pytest.raises(ConnectionRefusedError):
        await connect("none", port)


async def test_families_take_turns(names: dict[str, list[str]]) -> None:
    names["both"] = ["::1", "::2", "127.0.0.1", "127.0.0.2"]
    places = await module._places("both", 80)
    assert [address[0] for _, _, address in places] == ["::1", "127.0.0.1", "::2", "127.0.0.2"]
