"""How workers are called: keys, TLS, headers that are passed on."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import aiohttp

from pdtop.config.schema import Config
from pdtop.gateway.fleet import CannotServe
from pdtop.gateway.pool import Backend

#: Headers of a client that workers get, too.
_PASSED = ("x-request-id", "traceparent", "tracestate")
CONNECT_S = 5.0


class Dialer:
    """A client session, and what the configuration says about calling workers."""

    def __init__(self, session: aiohttp.ClientSession, config: Config) -> None:
        self.session = session
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
            except OSError as failure:  # an SSLError is one, too
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

    def get(
        self, backend: Backend, path: str, timeout_s: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self.session.get(
            backend.url + path,
            headers=self.headers(backend, {}),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            ssl=self._tls,
            allow_redirects=False,
        )

    async def post(
        self, backend: Backend, path: str, content: bytes, client: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Returns at the answer's head; whoever called must close it."""
        headers = self.headers(backend, client)
        headers["Content-Type"] = "application/json"
        return await self.session.post(
            backend.url + path, data=content, headers=headers, ssl=self._tls, allow_redirects=False
        )

    async def close(self) -> None:
        await self.session.close()
