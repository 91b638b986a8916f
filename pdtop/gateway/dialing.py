"""How workers are called: keys, TLS, headers that are passed on."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp

from pdtop.config.schema import Config
from pdtop.gateway.fleet import CannotServe
from pdtop.gateway.pool import Backend

#: Headers of a client that workers get, too.
_PASSED = ("x-request-id", "traceparent", "tracestate")
CONNECT_S = 5.0

#: What a worker says of itself is short; more is not read.
MOST_PAGE_BYTES = 8 * 2**20


class Page(NamedTuple):
    """A worker's answer to a question about itself."""

    status: int
    content: bytes

    @property
    def json(self) -> object:
        """None if it holds none."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None


async def read_all(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Its body. Raises :class:`aiohttp.ClientError` if that is longer than ``most`` bytes, or broken."""
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > most:
            raise aiohttp.ClientPayloadError(f"its answer is longer than {most} bytes")
        parts.append(part)
    return b"".join(parts)


class Dialer:
    """A client session, and what the configuration says about calling workers."""

    def __init__(self, session: aiohttp.ClientSession, config: Config) -> None:
        self.session = session
        self._reading: dict[asyncio.Future[None], aiohttp.StreamReader] = {}
        self.apply(config)

    @classmethod
    def open(cls, config: Config) -> Dialer:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0)
        return cls(aiohttp.ClientSession(connector=connector, timeout=timeout), config)

    def apply(self, config: Config) -> None:
        """Raises :class:`CannotServe` for a CA file that cannot be read, and then has changed nothing."""
        tls: ssl.SSLContext | bool = True
        if config.server.ca_file is not None:
            try:
                tls = ssl.create_default_context(cafile=config.server.ca_file)
            except (OSError, ValueError) as failure:  # an SSLError is one, too; a name with a NUL is no name
                raise CannotServe(f"server.ca_file cannot be used: {failure}") from failure
        self._tls = tls
        self._server = config.server

    def _key(self, backend: Backend) -> str | None:
        if backend.key is not None:
            return backend.key
        own = backend.settings.api_key_env
        return (os.environ.get(own) if own else None) or self._server.api_key()

    def headers(self, backend: Backend, client: Mapping[str, str]) -> dict[str, str]:
        headers = {"Accept-Encoding": "identity"}
        headers.update({name: client[name] for name in _PASSED if name in client})
        key = self._key(backend)
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        elif "Authorization" in client:  # as real routers do: the worker may know the client's key
            headers["Authorization"] = client["Authorization"]
        return headers

    async def page(self, backend: Backend, path: str, timeout_s: float) -> Page | None:
        """What a worker answers; None if it is no answer or longer than a page is."""
        try:
            async with self.session.get(
                backend.url + path,
                headers=self.headers(backend, {}),
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                ssl=self._tls,
                allow_redirects=False,
            ) as answer:
                return Page(answer.status, await read_all(answer, MOST_PAGE_BYTES))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):  # a name of a host can be no name
            return None

    async def post(
        self, backend: Backend, path: str, content: bytes, client: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Returns at the answer's head; whoever called must close it."""
        headers = self.headers(backend, client)
        headers["Content-Type"] = "application/json"
        answer = await self.session.post(
            backend.url + path, data=content, headers=headers, ssl=self._tls, allow_redirects=False
        )
        self._mind(answer)
        return answer

    def _mind(self, answer: aiohttp.ClientResponse) -> None:
        """Have whoever reads it know when its connection has gone.

        aiohttp 3.14 forgets to tell after garbage in the middle of a chunked body.
        """
        protocol = answer.connection.protocol if answer.connection is not None else None
        gone = protocol.closed if protocol is not None else None
        if gone is None:
            return  # all of it is here, or its failure is known
        known = gone in self._reading
        self._reading[gone] = answer.content
        if not known:
            gone.add_done_callback(self._gone)

    def _gone(self, connection: asyncio.Future[None]) -> None:
        content = self._reading.pop(connection)
        connection.exception()  # is seen
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection ended within the answer"))

    async def close(self) -> None:
        await self.session.close()
