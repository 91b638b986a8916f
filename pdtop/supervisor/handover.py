"""A fixed address whose new connections go to whichever process serves now: nothing is refused on the way.

Bytes are passed on as they come, nothing of HTTP is read, but for two cases in which a connection's process
is told to stop. A request that reached a connection just as that was being closed (nothing of it was
answered) is sent again, to the process that serves now. A connection that is closed after a whole streamed
answer stays open to the client, whose next request goes to the process that serves now. Both are what makes
keep-alive clients see nothing of a restart; see ``benchmarks/handover.py``.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import cast

#: A connection that finds no process is held so long, then gets a 503. A restart after a crash is shorter.
HOLD_S = 10.0
_RETRY_S = 0.02
_LINGER_S = 2.0
_RESEND_BYTES = 1 << 20
_BACKLOG = 4096
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_BODY = b'{"error":{"message":"the router is being started","type":"server_error","code":"router_down"}}'
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class Backend:
    """One address of one process. ``leaving``: it has been told to stop and ends its connections."""

    __slots__ = ("host", "leaving", "open", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.leaving = False
        self.open = 0


class HandOver:
    """Listens; every connection is joined to the backend that :meth:`switch` named last.

    To be used on one event loop.
    """

    def __init__(self, *, hold_s: float = HOLD_S) -> None:
        self.hold_s = hold_s
        self.refused = 0  # connections that got a 503 because no process was there in time
        self._backend: Backend | None = None
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._clients: set[_Client] = set()

    @property
    def backend(self) -> Backend | None:
        return self._backend

    @property
    def open(self) -> int:
        """Connections of clients."""
        return len(self._clients)

    @property
    def port(self) -> int | None:
        """Where it listens; None if it does not."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None else None

    async def listen(self, host: str, port: int) -> None:
        """Listen there, and no longer where it did. Raises OSError and changes nothing."""
        made = await asyncio.get_running_loop().create_server(
            lambda: _Client(self), host, port, backlog=_BACKLOG
        )
        self.stop_listening()
        self._server = made

    def stop_listening(self) -> None:
        """Refuse new connections; those that are there go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def switch(self, backend: Backend | None) -> None:
        """New connections go there from now on; None: they wait."""
        self._backend = backend
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def abort(self) -> None:
        """Cut all connections."""
        for client in tuple(self._clients):
            client.cut()

    async def dial(self, client: _Client) -> _Upstream | None:
        """A connection to the backend in charge; None if there was none in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.hold_s
        while True:
            backend, changed = self._backend, self._changed
            if backend is not None:
                with suppress(OSError):
                    _, made = await loop.create_connection(
                        partial(_Upstream, client, backend), backend.host, backend.port
                    )
                    return made
            left = deadline - loop.time()
            if left <= 0:
                self.refused += 1
                return None
            # With a backend that refuses: it may have died, and nobody has noticed yet.
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left, _RETRY_S) if backend is not None else left)

    def joined(self, client: _Client) -> None:
        self._clients.add(client)

    def left(self, client: _Client) -> None:
        self._clients.discard(client)


class _Side(asyncio.Protocol):
    """One end of a pair: what comes in goes out at ``peer``, as fast as that takes it."""

    transport: asyncio.Transport
    peer: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.resume_reading()


class _Client(_Side):
    """``unanswered``: what it sent since the last byte of an answer; None: too much to send again."""

    peer: _Upstream | None = None

    def __init__(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over
        self._joining: asyncio.Task[None] | None = None
        self.unanswered: bytearray | None = bytearray()
        self._ended = False  # it has sent all that it will send

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._hand_over.joined(self)
        self.rejoin()

    def rejoin(self) -> None:
        """Go to the process in charge, with what is unanswered."""
        self.peer = None
        self.transport.pause_reading()
        self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        upstream = await self._hand_over.dial(self)
        if upstream is None:
            self._refuse()
            return
        if self.transport.is_closing():
            upstream.transport.abort()
            return
        self.peer = upstream
        if self.unanswered:
            upstream.take(bytes(self.unanswered))
        if self._ended:
            upstream.transport.write_eof()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        kept = self.unanswered
        if kept is not None:
            kept += data
            if len(kept) > _RESEND_BYTES:
                self.unanswered = None
        if self.peer is not None:
            self.peer.take(data)
        elif self._joining is None:
            self.rejoin()  # its former process closed after a whole answer

    def eof_received(self) -> bool:
        self._ended = True
        if self.peer is None and self._joining is None:
            return False  # nothing is under way
        if self.peer is not None and not self.peer.transport.is_closing():
            self.peer.transport.write_eof()
        return True  # the answer may still come

    def connection_lost(self, exc: Exception | None) -> None:
        self._hand_over.left(self)
        if self._joining is not None:
            self._joining.cancel()
        if self.peer is not None:
            self.peer.transport.abort()

    def upstream_ended(self, upstream: _Upstream) -> None:
        """Its process closed the connection."""
        if self.peer is not upstream:
            return
        self.peer = self._joining = None
        if upstream.backend.leaving and not self.transport.is_closing():
            if self.unanswered:
                self.rejoin()
                return
            if upstream.tail == _END_OF_CHUNKS and not self.unanswered and not self._ended:
                self.transport.resume_reading()
                return
        self._finish()

    def _refuse(self) -> None:
        self.transport.write(UNAVAILABLE)
        self._finish()

    def _finish(self) -> None:
        """Close after all that is to be sent; what still comes in is read, lest it undo that."""
        if self.transport.is_closing():
            return
        if self._ended:
            self.transport.close()
            return
        self._joining = asyncio.get_running_loop().create_task(self._linger())
        self.transport.resume_reading()
        self.transport.write_eof()

    async def _linger(self) -> None:
        await asyncio.sleep(_LINGER_S)
        self.transport.abort()

    def cut(self) -> None:
        self.transport.abort()


class _Upstream(_Side):
    """``tail``: the end of what came."""

    peer: _Client

    def __init__(self, client: _Client, backend: Backend) -> None:
        self.peer = client
        self.backend = backend
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.backend.open += 1
        self._socket = transport.get_extra_info("socket")

    def take(self, data: bytes) -> None:
        """Pass on what the client sent."""
        self.transport.write(data)
        self._acknowledge_at_once()

    def _acknowledge_at_once(self) -> None:
        """sglang-router holds small writes back until the last one is acknowledged (Nagle): 40 ms otherwise.

        The kernel forgets it after a while, and whenever something is sent.
        """
        with suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def data_received(self, data: bytes) -> None:
        self._acknowledge_at_once()
        client = self.peer
        kept = client.unanswered
        if kept:
            kept.clear()
        elif kept is None:
            client.unanswered = bytearray()
        self.tail = data[-7:] if len(data) >= 7 else (self.tail + data)[-7:]
        client.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.backend.open -= 1
        self.peer.upstream_ended(self)


def listening_error(error: OSError, host: str, port: int) -> str:
    """Why an address cannot be listened on, in words."""
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now; whoever takes it before the engine does makes that start once more."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
