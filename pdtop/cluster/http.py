"""The one place that dials: one HTTP exchange with limits on time and size, as a value.

Nothing that a network or a server does raises here: a failure is an :class:`Answer` with ``failure`` and
``detail`` set. CPU a GET over 180 KB pages of 256 workers: aiohttp 0.17 ms, the same through the
httpx-aiohttp transport 0.26, through an httpx client on it 0.48, native httpx 1.13, this module 0.18
(``benchmarks/http_client.py``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import urljoin

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from pdtop import __version__
from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer

MAX_BODY_BYTES = 16 * 2**20
MAX_REDIRECTS = 3
TIMEOUT_S = 2.0
_GZIP_MAGIC = b"\x1f\x8b"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Headers that anything here looks at. Others, cookies among them, do not leave this module.
_KEPT_HEADERS = ("content-type", "content-encoding", "allow", "retry-after", "server", "www-authenticate")
_NO_TIMERS = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_MAX_PREPARED = 4096


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
        self._connect_to = dict(connect_to or {})
        self._max_body = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._prepared: dict[tuple[Address, str, BearerKey | None], _Prepared] = {}

    async def __aenter__(self) -> Dialler:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

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
        exchange = _Exchange(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout_s):
                await self._follow(exchange, method, address, path, key, content)
        except TimeoutError:
            came = f" ({exchange.size} bytes came)" if exchange.status is not None else ""
            exchange.fail(State.TIMEOUT, f"no complete answer within {timeout_s:g} s{came}")
        except aiohttp.ClientPayloadError:
            exchange.fail(State.PARTIAL, f"the connection ended early, after {exchange.size} bytes")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            exchange.fail(*_in_words(error))
        return exchange.answer(asyncio.get_running_loop().time(), self._max_body)

    async def _follow(
        self,
        exchange: _Exchange,
        method: str,
        address: Address,
        path: str,
        key: BearerKey | None,
        content: bytes | None,
    ) -> None:
        seen = {path}
        while True:
            location = await self._once(exchange, method, address, path, key, content)
            if location is None:
                return
            target = _same_origin_path(address, path, location)
            if method != "GET":
                exchange.fail(State.REDIRECT, f"{exchange.status} in answer to a {method}; not followed")
            elif target is None:
                exchange.fail(State.REDIRECT, f"{exchange.status} to {_place(location)}; not followed")
            elif target in seen or len(seen) > MAX_REDIRECTS:
                exchange.fail(State.REDIRECT, f"{exchange.status} in a circle, last to {_place(location)}")
            if exchange.failure is not None or target is None:
                return
            seen.add(target)
            path = target

    async def _once(
        self,
        exchange: _Exchange,
        method: str,
        address: Address,
        path: str,
        key: BearerKey | None,
        content: bytes | None,
    ) -> str | None:
        """One request; reads the body into ``exchange``. Returns the place that a redirect names."""
        prepared = self._prepare(address, path, key)
        headers = prepared.headers
        if content is not None:
            headers = CIMultiDict(headers)
            headers["content-type"] = "application/json"
        async with self._open_session().request(
            method,
            prepared.url,
            headers=headers,
            data=content,
            allow_redirects=False,
            server_hostname=prepared.server_name,
            ssl=self._tls_context() if address.scheme == "https" else True,
        ) as response:
            exchange.begin(response)
            if response.status in _REDIRECTS and "location" in response.headers:
                response.close()  # nobody needs the page that says "moved"
                return response.headers["location"]
            chunks, size, limit = exchange.chunks, 0, self._max_body
            while chunk := await response.content.readany():
                chunks.append(chunk)
                size += len(chunk)
                exchange.size = size
                if size > limit:
                    exchange.fail(State.PARTIAL, f"larger than {_mib(limit)}; the rest was not read")
                    response.close()
                    break
        return None

    def _prepare(self, address: Address, path: str, key: BearerKey | None) -> _Prepared:
        prepared = self._prepared.get((address, path, key))
        if prepared is None:
            if len(self._prepared) >= _MAX_PREPARED:  # redirects to ever new paths
                self._prepared.clear()
            prepared = _Prepared(address, path, key, self._connect_to.get(address.netloc))
            self._prepared[address, path, key] = prepared
        return prepared

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # done here, where the size can be limited
                timeout=_NO_TIMERS,  # one timer around the whole exchange instead
                read_bufsize=2**18,
                trust_env=False,
            )
        return self._session

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


class _Prepared:
    """What is the same every time a path is asked for."""

    __slots__ = ("headers", "server_name", "url")

    def __init__(self, address: Address, path: str, key: BearerKey | None, connect_to: str | None) -> None:
        place = f"{address.scheme}://{connect_to or address.netloc}"
        self.url = URL(place + address.path + path, encoded=True)
        self.server_name = address.host if connect_to and address.scheme == "https" else None
        # A worker packs its page in the process that also serves tokens; over loopback that buys nothing.
        encoding = "identity" if address.is_loopback else "gzip"
        self.headers = CIMultiDict(
            {"host": address.host_header, "accept-encoding": encoding, "user-agent": f"pdtop/{__version__}"}
        )
        authorization = address.authorization or (key.authorization if key else None)
        if authorization is not None:
            self.headers["authorization"] = authorization


class _Exchange:
    """What is known so far of one exchange; becomes an :class:`Answer` however it ends."""

    __slots__ = ("began", "chunks", "detail", "failure", "headers", "size", "status")

    def __init__(self, began: float) -> None:
        self.began = began
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self.size = 0
        self.failure: State | None = None
        self.detail = ""

    def begin(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}

    def fail(self, failure: State, detail: str) -> None:
        self.failure, self.detail = failure, detail

    def answer(self, now: float, max_body: int) -> Answer:
        body = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        body = body[:max_body]
        if body.startswith(_GZIP_MAGIC):  # by its bytes: proxies unpack and leave the header, or drop it
            body, problem = gunzip(body, max_body)
            if problem and self.failure is None:
                self.fail(State.PARTIAL, problem)
        elif self.headers.get("content-encoding", "identity").lower() not in ("identity", "gzip", ""):
            self.fail(State.HTTP_ERROR, "the answer is packed in a way that was not asked for")
        return Answer(
            at=now,
            seconds=now - self.began,
            status=self.status,
            headers=self.headers,
            body=body,
            truncated=self.failure is State.PARTIAL or (self.failure is State.TIMEOUT and self.size > 0),
            failure=self.failure,
            detail=self.detail,
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
    place, mark, query = urljoin(address.base_url + path, location).partition("?")
    try:
        target = Address.parse(place.partition("#")[0])
    except AddressError:
        return None
    if target.origin != address.origin:
        return None
    full = URL(place).raw_path
    if not full.startswith(address.path):
        return None
    return full.removeprefix(address.path) + mark + query.partition("#")[0]


def _place(location: str) -> str:
    """A redirect's target for people: no query, no password, nothing unprintable."""
    place = location.partition("?")[0].partition("#")[0]
    scheme, mark, rest = place.partition("://")
    authority, slash, path = rest.partition("/")
    text = scheme + mark + authority.rpartition("@")[2] + slash + path
    text = "".join(c if c.isprintable() else "·" for c in text)
    return text if len(text) <= 100 else text[:99] + "…"


def _in_words(error: Exception) -> tuple[State, str]:
    """Which state a failed exchange is, and why. The texts are ours: a library's may quote the server."""
    match error:
        case CaFileError():
            return State.TLS, str(error)
        case aiohttp.ClientConnectorCertificateError():
            cause = error.certificate_error
            reason = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else "refused"
            return State.TLS, f"certificate not trusted: {reason}"
        case aiohttp.ClientConnectorSSLError():
            return State.TLS, _handshake_in_words(error)
        case aiohttp.ClientConnectorDNSError():
            return State.REFUSED, "the host name is not known"
        case aiohttp.ServerDisconnectedError():
            return State.REFUSED, "the connection was closed without an answer"
        case ssl.SSLError():
            return State.TLS, "the TLS connection broke"
        case OSError():
            return _os_error_in_words(error)
        case _:
            return State.HTTP_ERROR, "the answer is not HTTP"


def _handshake_in_words(error: aiohttp.ClientConnectorSSLError) -> str:
    cause = error.os_error
    reason = getattr(cause, "reason", None) or ""
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"):
        return "the port does not speak TLS; write http:// if that is meant"
    return f"TLS handshake failed: {str(reason).replace('_', ' ').lower() or 'refused'}"


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
