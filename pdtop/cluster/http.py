"""The one place that dials: one HTTP exchange with limits on time and size, as a value.

Nothing that a network or a server does raises here: a failure is an :class:`Answer` with ``failure`` and
``detail`` set. Figures beside those of client libraries: ``benchmarks/http_client.py``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urljoin, urlsplit

from pdtop import __version__
from pdtop.cluster.address import Address, is_ip
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer
from pdtop.cluster.wire import Connection, Incoming, NotHttpError, TooLargeError

MAX_BODY_BYTES = 16 * 2**20
MAX_REDIRECTS = 3
TIMEOUT_S = 2.0
NEXT_ADDRESS_AFTER_S = 0.25  # RFC 8305
_GZIP_MAGIC = b"\x1f\x8b"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Headers that anything here looks at. Others, cookies among them, do not leave this module.
_KEPT_HEADERS = ("content-type", "content-encoding", "allow", "retry-after", "server", "www-authenticate")
_MAX_HEADS = 4096
_URL_SAFE = "/%?&=:@!$'()*+,;~"


class KeyRefusedError(ValueError):
    """The variable's value cannot be sent as a key. The message never holds the value."""


class BearerKey:
    """A key from an environment variable; prints as the variable's name."""

    __slots__ = ("_value", "variable")

    def __init__(self, value: str, variable: str = "") -> None:
        value = value.strip()
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            name = variable or "the key"
            raise KeyRefusedError(f"the value of {name} is empty or holds characters that no key has")
        self._value = value
        self.variable = variable

    @classmethod
    def from_env(cls, variable: str | None, environ: Mapping[str, str] | None = None) -> BearerKey | None:
        """The key in ``variable``; None if no variable is named or it is unset or blank."""
        value = (os.environ if environ is None else environ).get(variable or "", "")
        return cls(value, variable or "") if value.strip() else None

    @property
    def authorization(self) -> str:
        """Value of the ``Authorization`` header. Secret."""
        return "Bearer " + self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BearerKey) and other._value == self._value

    def __hash__(self) -> int:  # for the table of prepared requests
        return hash(self._value)

    def __repr__(self) -> str:
        return f"BearerKey(${self.variable})"


class Dialler:
    """Asks workers and routers. Use inside one event loop; close it there (or ``async with``).

    ``ca_file`` is trusted beside the system's CAs. ``connect_to`` maps ``host:port`` to the ``host:port``
    that is connected to instead (like curl's ``--connect-to``, for port forwards); the ``Host`` header and
    the name in the certificate stay the original ones. Proxy variables and ``.netrc`` are ignored.
    """

    def __init__(
        self,
        *,
        ca_file: Path | None = None,
        connect_to: Mapping[str, str] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._ca_file = ca_file
        self._connect_to = {key: Address.parse(value) for key, value in (connect_to or {}).items()}
        self._max_body = max_body_bytes
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}  # by origin, last used last
        self._heads: dict[tuple[str, Address, str, BearerKey | None], bytes] = {}

    async def __aenter__(self) -> Dialler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections that wait for use."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.abort()

    async def get(
        self, address: Address, path: str, *, timeout_s: float = TIMEOUT_S, key: BearerKey | None = None
    ) -> Answer:
        """GET ``path`` under the address, within ``timeout_s`` from start to the last byte."""
        return await self.request("GET", address, path, timeout_s=timeout_s, key=key)

    async def request(
        self,
        method: str,
        address: Address,
        path: str,
        *,
        timeout_s: float = TIMEOUT_S,
        key: BearerKey | None = None,
        content: bytes | None = None,
    ) -> Answer:
        """One exchange; ``content`` is sent as JSON. Only a GET follows redirects, to the same origin."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        hops = _Hops(Incoming(self._max_body))
        failure: tuple[State, str] | None = None
        try:
            async with asyncio.timeout(timeout_s):
                failure = await self._follow(hops, method, address, path, key, content)
        except TimeoutError:
            came = f" ({hops.incoming.size} bytes came)" if hops.incoming.status is not None else ""
            failure = State.TIMEOUT, f"no complete answer within {timeout_s:g} s{came}"
        except TooLargeError:
            failure = State.PARTIAL, f"larger than {_mib(self._max_body)}; the rest was not read"
        except (OSError, NotHttpError, CaFileError) as error:
            if hops.incoming.status is not None and isinstance(error, OSError):
                failure = State.PARTIAL, f"the connection ended early, after {hops.incoming.size} bytes"
            else:
                failure = _in_words(error)
        return _answer(hops.incoming, began, loop.time(), failure, self._max_body)

    async def _follow(
        self,
        hops: _Hops,
        method: str,
        address: Address,
        path: str,
        key: BearerKey | None,
        content: bytes | None,
    ) -> tuple[State, str] | None:
        seen = {path}
        while True:
            incoming = await self._once(hops, method, address, path, key, content)
            location = incoming.headers.get("location")
            if incoming.status not in _REDIRECTS or location is None:
                return None
            if method != "GET":
                return State.REDIRECT, f"{incoming.status} in answer to a {method}; not followed"
            target = _same_origin_path(address, path, location)
            if target is None:
                return State.REDIRECT, f"{incoming.status} to {_place(location)}; not followed"
            if target in seen or len(seen) > MAX_REDIRECTS:
                return State.REDIRECT, f"{incoming.status} in a circle, last to {_place(location)}"
            seen.add(target)
            path = target

    async def _once(
        self,
        hops: _Hops,
        method: str,
        address: Address,
        path: str,
        key: BearerKey | None,
        content: bytes | None,
    ) -> Incoming:
        """One request. A connection from the idle ones that turns out to be closed is replaced."""
        request = self._head(method, address, path, key)
        if content is not None:
            request += (
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content
            )
        else:
            request += b"\r\n"
        while True:
            incoming = hops.incoming = Incoming(self._max_body)
            connection = self._waiting(address) if method == "GET" else None
            reused = connection is not None
            if connection is None:
                connection = await self._connect(address)
            try:
                await connection.exchange(request, incoming)
            except OSError:
                if reused and incoming.untouched:
                    continue
                raise
            if connection.open:
                self._idle.setdefault(address.origin, []).append(connection)
            return incoming

    def _waiting(self, address: Address) -> Connection | None:
        connections = self._idle.get(address.origin)
        while connections:
            connection = connections.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self, address: Address) -> Connection:
        place = self._connect_to.get(address.netloc, address)
        tls = address.scheme == "https"
        # Racing a name's addresses, Python 3.11 drops the winner's open socket if it is cancelled in that
        # moment, as any stop of the poller may do; a literal address has nothing to race with.
        delay = None if is_ip(place.host) else NEXT_ADDRESS_AFTER_S
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection,
            place.host,
            place.port,
            ssl=self._tls_context() if tls else None,
            server_hostname=address.host if tls else None,
            ssl_shutdown_timeout=1.0 if tls else None,
            happy_eyeballs_delay=delay,
        )
        return connection

    def _head(self, method: str, address: Address, path: str, key: BearerKey | None) -> bytes:
        """Request line and headers, all but the last line; the same at every poll, so made once."""
        head = self._heads.get((method, address, path, key))
        if head is None:
            if len(self._heads) >= _MAX_HEADS:  # redirects to ever new paths
                self._heads.clear()
            head = self._heads[method, address, path, key] = _head(method, address, path, key)
        return head

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            context = ssl.create_default_context()
            if self._ca_file is not None:
                try:
                    context.load_verify_locations(cafile=self._ca_file)
                except OSError as error:
                    reason = "not PEM" if isinstance(error, ssl.SSLError) else error.strerror
                    raise CaFileError(f"CA file {self._ca_file}: {reason}") from error
            self._tls = context
        return self._tls


class CaFileError(ValueError):
    """The CA file cannot be used."""


class _Hops:
    """The answer now on its way: what has come of it is told even if time runs out."""

    __slots__ = ("incoming",)

    def __init__(self, incoming: Incoming) -> None:
        self.incoming = incoming


def _head(method: str, address: Address, path: str, key: BearerKey | None) -> bytes:
    # A worker packs its page in the process that also serves tokens; over loopback that buys nothing.
    encoding = "identity" if address.is_loopback else "gzip"
    lines = [
        f"{method} {quote(address.path + path, safe=_URL_SAFE)} HTTP/1.1",
        f"Host: {address.host_header}",
        f"User-Agent: pdtop/{__version__}",
        "Accept: */*",
        f"Accept-Encoding: {encoding}",
    ]
    authorization = address.authorization or (key.authorization if key else None)
    if authorization is not None:
        lines.append(f"Authorization: {authorization}")
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def _answer(
    incoming: Incoming, began: float, now: float, failure: tuple[State, str] | None, max_body: int
) -> Answer:
    body = incoming.chunks[0] if len(incoming.chunks) == 1 else b"".join(incoming.chunks)
    body = body[:max_body]
    if body.startswith(_GZIP_MAGIC):  # by its bytes: proxies unpack and leave the header, or drop it
        body, problem = gunzip(body, max_body)
        if problem and failure is None:
            failure = State.PARTIAL, problem
    elif incoming.headers.get("content-encoding", "identity").lower() not in ("identity", "gzip", ""):
        failure = failure or (State.HTTP_ERROR, "the answer is packed in a way that was not asked for")
    state, detail = failure or (None, "")
    return Answer(
        at=now,
        seconds=now - began,
        status=incoming.status,
        headers={name: incoming.headers[name] for name in _KEPT_HEADERS if name in incoming.headers},
        body=body,
        truncated=state is State.PARTIAL or (state is State.TIMEOUT and incoming.size > 0),
        failure=state,
        detail=detail,
    )


def gunzip(packed: bytes, limit: int) -> tuple[bytes, str]:
    """Unpack up to ``limit`` bytes; what could be unpacked, and what was wrong in words ("" if nothing)."""
    parts: list[bytes] = []
    room = limit
    while packed:
        member = zlib.decompressobj(wbits=31)
        try:
            part = member.decompress(packed, room + 1)
        except zlib.error:
            return b"".join(parts), "the gzip body is damaged"
        parts.append(part[:room])
        if len(part) > room:
            return b"".join(parts), f"larger than {_mib(limit)} unpacked; the rest was not read"
        if not member.eof:
            return b"".join(parts), "the gzip body ends early"
        room -= len(part)
        packed = member.unused_data if member.unused_data.startswith(_GZIP_MAGIC) else b""
    return b"".join(parts), ""


def _mib(size: int) -> str:
    return f"{size / 2**20:g} MiB"


def _same_origin_path(address: Address, path: str, location: str) -> str | None:
    """Path under the address's base that a redirect leads to; None if it leads to another origin."""
    try:
        parts = urlsplit(urljoin(address.base_url + path, location))
        target = Address.parse(f"{parts.scheme}://{parts.netloc}")
    except ValueError:
        return None
    if target.origin != address.origin or not parts.path.startswith(address.path):
        return None
    return parts.path.removeprefix(address.path) + (f"?{parts.query}" if parts.query else "")


def _place(location: str) -> str:
    """A redirect's target for people: no query, no password, nothing unprintable."""
    place = location.partition("?")[0].partition("#")[0]
    scheme, mark, rest = place.partition("://")
    authority, slash, path = rest.partition("/")
    text = scheme + mark + authority.rpartition("@")[2] + slash + path
    text = "".join(c if c.isprintable() else "·" for c in text)
    return text if len(text) <= 100 else text[:99] + "…"


def _in_words(error: Exception) -> tuple[State, str]:
    """Which state a failed exchange is, and why. The texts are ours and quote nothing that was received."""
    match error:
        case CaFileError():
            return State.TLS, str(error)
        case NotHttpError():
            return State.HTTP_ERROR, str(error)
        case ssl.SSLCertVerificationError():
            return State.TLS, f"certificate not trusted: {error.verify_message}"
        case ssl.SSLError():
            return State.TLS, _handshake_in_words(error)
        case socket.gaierror():
            return State.REFUSED, "the host name is not known"
        case ConnectionAbortedError():
            return State.REFUSED, "the connection was closed without an answer"
        case OSError():
            return _os_error_in_words(error)
        case _:
            return State.HTTP_ERROR, "the request cannot be made"


def _handshake_in_words(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"):
        return "the port does not speak TLS; write http:// if that is meant"
    return f"TLS handshake failed: {reason.replace('_', ' ').lower() or 'refused'}"


def _os_error_in_words(error: OSError) -> tuple[State, str]:
    match error.errno:
        case errno.ETIMEDOUT:
            return State.TIMEOUT, "the network gave up"
        case errno.ECONNREFUSED:
            return State.REFUSED, "connection refused: nothing listens there"
        case errno.ECONNRESET | errno.EPIPE:
            return State.REFUSED, "the connection was reset"
        case errno.EHOSTUNREACH | errno.ENETUNREACH:
            return State.REFUSED, "no route to the host"
        case errno.EMFILE | errno.ENFILE:
            return State.REFUSED, "this machine has no file handles left (ulimit -n)"
        case number:
            return State.REFUSED, os.strerror(number) if number else "the network says no"
