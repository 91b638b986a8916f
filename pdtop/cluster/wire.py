"""HTTP/1.1 on one connection: a request out, an answer in, with a limit on its size.

By hand, for two measured reasons. The import: ``aiohttp`` takes 0.17 s, a third of what a snapshot may take.
The CPU: for hundreds of small exchanges a second most of a client library's work is building objects that
nobody looks at. What is asked here is simple: no cookies, no proxies, no pipelining, no upgrade.
"""

from __future__ import annotations

import asyncio
import re

MAX_HEAD_BYTES = 64 * 1024
_MAX_CHUNK_LINE = 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_NO_BODY = frozenset({204, 304})


class NotHttpError(Exception):
    """What came is not HTTP. The message is ours and quotes nothing."""


class TooLargeError(Exception):
    """The body is larger than the limit."""


class Incoming:
    """One answer as it arrives; fed with bytes, does no I/O.

    ``chunks`` are the body's bytes so far. ``reusable``: the connection may carry another exchange.
    """

    __slots__ = (
        "_buffer",
        "_chunked",
        "_limit",
        "_missing",
        "_until_close",
        "chunks",
        "done",
        "headers",
        "reusable",
        "size",
        "status",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = b""
        self._missing = 0  # bytes of the body, or of this chunk with its line end
        self._chunked = False
        self._until_close = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.size = 0
        self.done = False
        self.reusable = False

    @property
    def untouched(self) -> bool:
        """Nothing at all has come."""
        return self.status is None and not self._buffer

    def feed(self, data: bytes) -> None:
        """Take what has come. Raises NotHttpError or TooLargeError."""
        if self.status is None:
            data = self._head(self._buffer + data if self._buffer else data)
        if self.status is None or not data:
            return
        if self.done:
            self.reusable = False  # more than was announced
        elif self._chunked:
            self._chunks_of(self._buffer + data if self._buffer else data)
        elif self._until_close:
            self._keep(data)
        else:
            if len(data) > self._missing:
                data, self.reusable = data[: self._missing], False
            self._missing -= len(data)
            self.done = not self._missing
            self._keep(data)

    def ended(self) -> None:
        """The connection is closed: the end of a body that has no other."""
        if self._until_close:
            self.done = True

    def _keep(self, data: bytes) -> None:
        self.chunks.append(data)
        self.size += len(data)
        if self.size > self._limit:
            raise TooLargeError

    def _head(self, data: bytes) -> bytes:
        """Read the head once it is whole; gives back what follows it. Interim answers (1xx) are skipped."""
        while True:
            end = _HEAD_END.search(data)
            if end is None:
                if len(data) > MAX_HEAD_BYTES:
                    raise NotHttpError("the head of the answer does not end")
                if not b"HTTP/1.".startswith(data[:7]) and not data.startswith(b"HTTP/1."):
                    raise NotHttpError("the answer is not HTTP")
                self._buffer = data
                return b""
            start = _STATUS_LINE.match(data)
            if start is None or end.end() > MAX_HEAD_BYTES:
                raise NotHttpError("the answer is not HTTP")
            status = int(start[2])
            lines, data = data[start.end() : end.start()], data[end.end() :]
            if status >= 200:
                break
            if status == 101:
                raise NotHttpError("the answer changes to another protocol")
        self._buffer = b""
        self.headers = _headers(lines)
        self._frame(status, old=start[1] == b"0")
        self.status = status
        return data

    def _frame(self, status: int, *, old: bool) -> None:
        """How the body ends: by length, in chunks, or with the connection."""
        headers = self.headers
        connection = headers.get("connection", "").lower()
        self.reusable = "keep-alive" in connection if old else "close" not in connection
        if status in _NO_BODY:
            self.done = True
        elif "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise NotHttpError("the answer is packed in a way that was not asked for")
            self._chunked = True
        elif "content-length" in headers:
            length = headers["content-length"]
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise NotHttpError("the length of the answer is no number")
            self._missing = int(length)
            self.done = not self._missing
        else:
            self._until_close, self.reusable = True, False

    def _chunks_of(self, data: bytes) -> None:
        at = 0
        while True:
            if self._missing:
                part = data[at : at + self._missing]
                at += len(part)
                before, self._missing = self._missing, self._missing - len(part)
                body = part[: max(before - 2, 0)]  # the last two are the chunk's line end
                if body:
                    self._keep(body)
                if self._missing:
                    self._buffer = b""
                    return
            line = _CHUNK_SIZE.match(data, at)
            if line is None:
                rest = data[at:]
                if b"\n" in rest or len(rest) > _MAX_CHUNK_LINE:
                    raise NotHttpError("the chunks of the answer are broken")
                self._buffer = rest
                return
            size = int(line[1], 16)
            if size == 0:
                self._last_chunk(data, line.start(), line.end())
                return
            at = line.end()
            self._missing = size + 2

    def _last_chunk(self, data: bytes, start: int, end: int) -> None:
        """After the last chunk come trailers, which nobody reads, and an empty line."""
        rest = data[end:]
        closing = re.match(rb"\r?\n", rest) or _HEAD_END.search(rest)
        if closing is not None:
            self.done = True
            self.reusable = self.reusable and closing.end() == len(rest)
        elif len(rest) > MAX_HEAD_BYTES:
            raise NotHttpError("the chunks of the answer are broken")
        else:
            self._buffer = data[start:]


def _headers(lines: bytes) -> dict[str, str]:
    """Names in lower case; the values of a name that comes again are joined, two lengths must be equal."""
    headers: dict[str, str] = {}
    for line in lines.splitlines():
        name_bytes, colon, value_bytes = line.partition(b":")
        if not colon:
            continue
        name = name_bytes.strip().lower().decode("latin-1")
        value = value_bytes.strip().decode("latin-1")
        before = headers.get(name)
        if before is not None and name == "content-length":
            if before != value:
                raise NotHttpError("the answer has two lengths")
        else:
            headers[name] = value if before is None else f"{before}, {value}"
    return headers


class Connection(asyncio.Protocol):
    """One connection, for one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._incoming: Incoming | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self.open = True

    def data_received(self, data: bytes) -> None:
        incoming, waiter = self._incoming, self._waiter
        if incoming is None or waiter is None:  # nobody asked
            self.abort()
            return
        if waiter.done():
            incoming.reusable = False
            return
        try:
            incoming.feed(data)
        except (NotHttpError, TooLargeError) as error:
            waiter.set_exception(error)
            self.abort()
            return
        if incoming.done:
            waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._transport = None
        waiter, incoming = self._waiter, self._incoming
        if waiter is None or incoming is None or waiter.done():
            return
        incoming.ended()
        if incoming.done and exc is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(exc or ConnectionAbortedError())

    async def exchange(self, request: bytes, incoming: Incoming) -> None:
        """Send, and wait for the whole answer. Raises OSError if it ends early, or as ``feed``."""
        if self._transport is None:
            raise ConnectionAbortedError
        self._incoming = incoming
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._waiter
        finally:
            if not (incoming.done and incoming.reusable):
                self.abort()
            self._waiter = self._incoming = None

    def abort(self) -> None:
        """Close at once, whatever is still under way."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
