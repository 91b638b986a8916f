"""One inference request through a prefill and a decode worker at once.

SGLang's way: both workers get the same body with ``bootstrap_host``, ``bootstrap_port`` and a room number
by which they find each other; decode's answer is the client's. A request that has shown the client nothing
yet is tried again elsewhere; a client that goes away ends both legs.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import aiohttp
from aiohttp import web

from pdtop.gateway.metrics import RouterMetrics
from pdtop.gateway.policies import PREFIX_CHARS
from pdtop.gateway.pool import Backend, Pool

ATTEMPTS = 3

#: Answer headers that belong to the connection, not to the answer.
_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "content-encoding",
    "date",
    "server",
}


class NoWorker(Exception):
    """A pool has nobody who can take the request."""


class LegFailed(Exception):
    """A worker failed before the client was told anything."""

    def __init__(self, backend: Backend, reason: str) -> None:
        super().__init__(reason)
        self.backend = backend
        self.reason = reason


@dataclass(slots=True)
class Legs:
    """The two dispatches of one attempt."""

    prefill: Backend
    decode: Backend


class Proxy:
    """See the module. ``handle`` serves one request."""

    def __init__(
        self, prefill: Pool, decode: Pool, session: aiohttp.ClientSession, metrics: RouterMetrics
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._session = session
        self._metrics = metrics
        self._rooms = random.SystemRandom()

    async def handle(self, request: web.Request, endpoint: str) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            return error("the body is not JSON", 400, "invalid_request")
        if not isinstance(body, dict):
            return error("the body is not a JSON object", 400, "invalid_request")
        model = str(body.get("model", "unknown"))
        labels = ("http", "pd", "http", model, endpoint)
        streaming = "true" if body.get("stream") is True else "false"
        self._metrics.requests.labels(*labels, streaming).inc()
        prefix = prompt_start(body)
        tried: list[Backend] = []
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                for role in ("prefill", "decode"):
                    self._metrics.retries.labels(role, endpoint).inc()
            try:
                legs = self._select(prefix, tried, model)
                return await self._attempt(request, body, legs, labels)
            except NoWorker as nobody:
                self._metrics.request_errors.labels(*labels, "no_available_workers").inc()
                return error(str(nobody), 503, "no_available_workers")
            except LegFailed as failure:
                tried.append(failure.backend)
                reason = failure.reason
                kind = self._metrics.errors.labels(failure.backend.role, "http", "upstream")
                kind.inc()
        self._metrics.request_errors.labels(*labels, "upstream").inc()
        return error(reason, 502, "upstream_error")

    def _select(self, prefix: str, tried: list[Backend], model: str) -> Legs:
        now = monotonic()
        chosen: list[Backend] = []
        for pool in (self._prefill, self._decode):
            backend = pool.pick(prefix, now, tried)
            if backend is None:
                raise NoWorker(f"no {pool.role} worker can take a request")
            self._metrics.selections.labels(pool.role, "http", model, pool.policy).inc()
            chosen.append(backend)
        return Legs(*chosen)

    async def _attempt(
        self, request: web.Request, body: Mapping[str, object], legs: Legs, labels: tuple[str, ...]
    ) -> web.StreamResponse:
        payload = json.dumps(
            {
                **body,
                "bootstrap_host": legs.prefill.host,
                "bootstrap_port": legs.prefill.bootstrap_port,
                "bootstrap_room": self._rooms.getrandbits(63),
            }
        ).encode()
        started = monotonic()
        prefill = asyncio.create_task(self._prefill_leg(request.path, payload, legs.prefill, labels[3]))
        decode = asyncio.create_task(self._open(request.path, payload, legs.decode))
        self._begin(legs.decode, labels[3])
        try:
            await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if not decode.done() or prefill.done():
                await prefill  # raises if prefill was the first to fail
            upstream = await decode
            async with upstream:
                return await self._relay(request, upstream, legs.decode, labels, started)
        finally:
            legs.decode.inflight -= 1
            for task in (prefill, decode):
                task.cancel()
            for task in (prefill, decode):
                with suppress(asyncio.CancelledError, LegFailed):
                    await task
            if decode.done() and not decode.cancelled() and decode.exception() is None:
                decode.result().close()

    def _begin(self, backend: Backend, model: str) -> None:
        backend.inflight += 1
        backend.dispatched += 1
        self._metrics.dispatched.labels(backend.url, model).inc()

    def _outcome(self, backend: Backend, ok: bool) -> None:
        backend.outcome(ok, monotonic())
        self._metrics.outcomes.labels(backend.url, "success" if ok else "failure").inc()

    async def _prefill_leg(self, path: str, payload: bytes, backend: Backend, model: str) -> None:
        self._begin(backend, model)
        started = monotonic()
        try:
            async with await self._open(path, payload, backend) as answer:
                async for _ in answer.content.iter_any():
                    pass
            self._outcome(backend, True)
            self._metrics.prefill.labels("pd", model, "sglang").observe(monotonic() - started)
        except aiohttp.ClientError as failure:
            self._outcome(backend, False)
            raise LegFailed(backend, f"{backend.url}: {_words(failure)}") from failure
        finally:
            backend.inflight -= 1

    async def _open(self, path: str, payload: bytes, backend: Backend) -> aiohttp.ClientResponse:
        """Send one leg; returns at the answer's head. A server error is a failure of the leg."""
        try:
            answer = await self._session.post(
                backend.url + path, data=payload, headers={"Content-Type": "application/json"}
            )
        except (aiohttp.ClientError, TimeoutError) as failure:
            self._outcome(backend, False)
            raise LegFailed(backend, f"{backend.url}: {_words(failure)}") from failure
        if answer.status >= 500:
            text = (await answer.text())[:300]
            self._outcome(backend, False)
            raise LegFailed(backend, f"{backend.url} answered {answer.status}: {text}")
        return answer

    async def _relay(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        backend: Backend,
        labels: tuple[str, ...],
        started: float,
    ) -> web.StreamResponse:
        headers = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP}
        out = web.StreamResponse(status=upstream.status, headers=headers)
        streams = upstream.content_type == "text/event-stream"
        try:
            async for part in upstream.content.iter_any():
                if not out.prepared:
                    await out.prepare(request)
                    if streams:  # an answer in one piece has no first token
                        self._metrics.ttft.labels("pd", labels[3], "sglang").observe(monotonic() - started)
                        self._metrics.duration.labels(*labels).observe(monotonic() - started)
                await out.write(part)
        except aiohttp.ClientError as failure:
            self._outcome(backend, False)
            if not out.prepared:
                raise LegFailed(backend, f"{backend.url}: {_words(failure)}") from failure
            self._metrics.request_errors.labels(*labels, "stream_broken").inc()
            await out.write(_stream_error(f"{backend.url}: {_words(failure)}"))
            await out.write_eof()
            return out
        if not out.prepared:
            await out.prepare(request)
        if not streams:
            self._metrics.duration.labels(*labels).observe(monotonic() - started)
        self._outcome(backend, True)
        await out.write_eof()
        return out


def prompt_start(body: Mapping[str, object]) -> str:
    """The first characters of the prompt, as far as a policy looks at it."""
    text = body.get("text")
    if isinstance(text, str):
        return text[:PREFIX_CHARS]
    messages = body.get("messages")
    if isinstance(messages, list):
        contents = (m.get("content") for m in messages if isinstance(m, dict))
        return "".join(c for c in contents if isinstance(c, str))[:PREFIX_CHARS]
    return ""


def error(message: str, status: int, code: str) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"type": kind, "code": code, "message": message, "param": None}}
    return web.json_response(body, status=status, headers={"x-pdtop-error-code": code})


def _stream_error(message: str) -> bytes:
    body = {"error": {"type": "stream_error", "message": f"Stream error: {message}"}}
    return b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"


def _words(failure: BaseException) -> str:
    return str(failure) or type(failure).__name__
