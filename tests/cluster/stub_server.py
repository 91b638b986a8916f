"""A stub HTTP server on loopback that misbehaves on demand: late, in drips, cut off, packed, over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import math
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trustme


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. ``at`` is the loop's clock; header names in lower case."""

    method: str
    path: str  # with the query
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and how it is sent.

    ``announce``: the Content-Length that is claimed, if not the true one. ``raw``: exactly these bytes
    instead of all else. ``endless``: after the body this is sent again and again.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    delay_s: float = 0.0
    packed: bool = False  # gzip
    chunked: bool = False
    chunk_bytes: int | None = None
    drip: tuple[int, float] | None = None  # pieces, seconds in all
    announce: int | None = None
    close: bool = False
    raw: bytes | None = None
    endless: bytes | None = None


Answering = Callable[[Request], Reply | Awaitable[Reply]]


class StubServer:
    """Serves on a free loopback port while the ``async with`` block runs. Keeps every request that came."""

    def __init__(self, answer: Answering, *, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0
        self.requests: list[Request] = []
        self.connections = 0
        self.open: Counter[str] = Counter()  # requests under way, by path
        self.open_max = 0  # most of them at one time on one path

    async def __aenter__(self) -> StubServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open.values():
            writer.transport.abort()  # whoever still answers or waits there sees it and ends
        await asyncio.gather(*self._open)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        self.connections += 1
        try:
            while (request := await self._request(reader, writer)) is not None:
                self.requests.append(request)
                self.open[request.route] += 1
                self.open_max = max(self.open_max, self.open[request.route])
                try:
                    if not await self._exchange(request, reader, writer):
                        break
                finally:
                    self.open[request.route] -= 1
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            del self._open[task]
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        first_byte = await reader.readexactly(1)
        if not first_byte.isalpha():  # a TLS handshake on a plain port; real servers answer so, too
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            return None
        head = first_byte + await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, path, headers, body, asyncio.get_running_loop().time())

    async def _exchange(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer; True if the connection may go on. Ends early when the client goes away."""
        answering = asyncio.ensure_future(self._reply(request, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return await answering if answering.done() else False
        finally:
            for one in (answering, leaving):
                one.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _reply(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        answer = self._answer(request)
        reply = answer if isinstance(answer, Reply) else await answer
        if reply.hang:
            await asyncio.Event().wait()
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.raw is not None:
            writer.write(reply.raw)
            await writer.drain()
            return False
        body = gzip.compress(reply.body) if reply.packed else reply.body
        writer.write(self._head(reply, len(body)))
        pieces = _pieces(body, reply)
        for number, piece in enumerate(pieces):
            if reply.drip is not None and number:
                await asyncio.sleep(reply.drip[1] / max(len(pieces) - 1, 1))
            writer.write(_chunk(piece) if reply.chunked else piece)
            await writer.drain()
        while reply.endless is not None:
            writer.write(_chunk(reply.endless) if reply.chunked else reply.endless)
            await writer.drain()
            await asyncio.sleep(0)
        if reply.chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not (reply.close or reply.announce is not None)

    def _head(self, reply: Reply, size: int) -> bytes:
        headers = {name.lower(): value for name, value in reply.headers.items()}
        if reply.chunked:
            headers["transfer-encoding"] = "chunked"
        elif reply.endless is None:
            headers["content-length"] = str(size if reply.announce is None else reply.announce)
        if reply.packed:
            headers["content-encoding"] = "gzip"
        if reply.close:
            headers["connection"] = "close"
        lines = [
            f"HTTP/1.1 {reply.status} Whatever",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _pieces(body: bytes, reply: Reply) -> Sequence[bytes]:
    size = len(body)
    if reply.chunk_bytes is not None:
        size = reply.chunk_bytes
    elif reply.drip is not None:
        size = math.ceil(len(body) / reply.drip[0])
    size = max(size, 1)
    return [body[at : at + size] for at in range(0, len(body), size)]


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def always(reply: Reply) -> Answering:
    """The same answer to everything."""
    return lambda _: reply


def by_path(replies: Mapping[str, Reply]) -> Callable[[Request], Reply]:
    """An answer by path; 404 for others."""
    return lambda request: replies.get(request.route, Reply(404, body=b'{"detail":"Not Found"}'))


@dataclass(frozen=True, slots=True)
class Tls:
    """A server's certificate and the CA that signed it, as PEM."""

    server: ssl.SSLContext
    ca_pem: bytes


def self_signed(*names: str) -> Tls:
    """A certificate for these names, signed by a CA that nobody trusts yet."""
    ca = trustme.CA()
    certificate = ca.issue_cert(*names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return Tls(context, ca.cert_pem.bytes())
