"""One inference request through a prefill and a decode worker at once.

SGLang's way: both workers get the same body with ``bootstrap_host``, ``bootstrap_port`` and a room number
by which they find each other; decode's answer is the client's. A request that has shown the client nothing
yet is tried again elsewhere; a client that goes away ends both legs.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import aiohttp
from aiohttp import web

from pdtop.gateway.dialing import Dialer, read_all
from pdtop.gateway.fleet import Dispatch, Fleet, NoWorker
from pdtop.gateway.inference import BadRequest, Inference, read_inference, tokens_in
from pdtop.gateway.metrics import RouterMetrics
from pdtop.gateway.pool import Backend, Leg
from pdtop.gateway.probing import SILENCE_S

ATTEMPTS = 3
RETRY_AFTER_S = 0.05  # times the number of attempts so far

#: Requests at the same time; beyond it clients are told to come again. Each costs about 100 KB.
MOST_INFLIGHT = 4096

#: A body that has not arrived by then is refused: slow clients must not hold the places of others.
BODY_S = 60.0

#: A client that reads nothing for so long after its stream has failed is cut.
LAST_WORDS_S = 2.0

#: An answer that is not a stream is held in memory before it is passed on; a longer one is a failure.
MOST_ANSWER_BYTES = 64 * 2**20

#: Prefill's answer ends about when decode's begins; after a short answer it is waited for so long.
_PREFILL_TAIL_S = 1.0

_TAIL_BYTES = 2048
_LAST_EVENT = b"[DONE]"

#: Answer headers that belong to the connection, not to the answer.
_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "content-encoding",
    "date",
    "server",
    "te",
    "trailer",
    "upgrade",
    "proxy-authenticate",
    "x-request-id",
    "x-smg-error-code",  # the router's own word, and a label of its metrics
}


class LegFailed(Exception):
    """A worker failed before the client was told anything."""

    def __init__(self, backend: Backend, reason: str) -> None:
        super().__init__(reason)
        self.backend = backend
        self.reason = reason


@dataclass(slots=True)
class Answer:
    """What a worker has answered so far: its head and the first part of its body."""

    response: aiohttp.ClientResponse
    first: bytes

    @property
    def streams(self) -> bool:
        return self.response.content_type == "text/event-stream"


class PrefillRefused(Exception):
    """Prefill says that the request is at fault; its answer is the client's."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


@dataclass(slots=True)
class Call:
    """One client's request on its way."""

    request: web.Request
    inference: Inference
    labels: tuple[str, ...]
    out: web.StreamResponse | None = None
    complete: bool = False  # all of the stream has been written, perhaps not yet sent
    tried: set[Backend] = field(default_factory=set)

    @property
    def model(self) -> str:
        return self.labels[3]


class Proxy:
    """See the module. ``handle`` serves one request."""

    def __init__(self, fleet: Fleet, dialer: Dialer, metrics: RouterMetrics) -> None:
        self._fleet = fleet
        self._dialer = dialer
        self._metrics = metrics
        self.closing = False
        self._inflight = 0
        self._idle = asyncio.Event()

    async def finish(self) -> None:
        """Take no new requests from now on; returns when the last one has ended."""
        self.closing = True
        while self._inflight:
            self._idle.clear()
            await self._idle.wait()

    async def handle(self, request: web.Request, endpoint: str) -> web.StreamResponse:
        if self.closing:
            return error("this router is being stopped", 503, "shutting_down")
        if self._inflight >= MOST_INFLIGHT:
            return error(f"{MOST_INFLIGHT} requests are in flight", 503, "overloaded")
        self._inflight += 1
        try:
            return await self._serve(request, endpoint)
        finally:
            self._inflight -= 1
            if not self._inflight:
                self._idle.set()

    async def _serve(self, request: web.Request, endpoint: str) -> web.StreamResponse:
        try:
            async with asyncio.timeout(BODY_S):
                raw = await request.read()
        except TimeoutError:
            return error(f"the body did not arrive in {BODY_S:g} s", 408, "request_timeout")
        try:
            inference = read_inference(raw)
        except BadRequest as fault:
            return error(str(fault), 400, "invalid_request")
        labels = ("http", "pd", "http", self._model_label(inference.model), endpoint)
        call = Call(request, inference, labels)
        self._metrics.requests.labels(*labels, "true" if inference.streaming else "false").inc()
        limit = self._fleet.config.server.request_timeout_secs
        try:
            async with asyncio.timeout(limit):
                return await self._attempts(call)
        except TimeoutError:
            words = f"the request took longer than {limit:g} s"
            self._metrics.request_errors.labels(*labels, "timeout").inc()
            if call.out is None:
                return error(words, 504, "timeout")
            return await _broken(call, call.out, words)

    def _model_label(self, named: str) -> str:
        """Names that no worker serves are one label: clients must not be able to make series."""
        known = {b.model for b in self._fleet}
        if not named or known == {"unknown"}:
            return "unknown"
        return named if named in known else "other"

    async def _attempts(self, call: Call) -> web.StreamResponse:
        endpoint = call.labels[4]
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                for role in ("prefill", "decode"):
                    self._metrics.retries.labels(role, endpoint).inc()
                await asyncio.sleep(RETRY_AFTER_S * (attempt - 1))
            try:
                dispatch = self._fleet.dispatch(call.inference.wanted, monotonic(), call.tried)
            except NoWorker as nobody:
                self._metrics.request_errors.labels(*call.labels, "no_available_workers").inc()
                return error(f"{nobody}; {reason}" if reason else str(nobody), 503, "no_available_workers")
            try:
                return await self._attempt(call, dispatch)
            except LegFailed as failure:
                call.tried.add(failure.backend)
                reason = failure.reason
                self._metrics.errors.labels(failure.backend.role, "http", "upstream").inc()
            finally:
                self._fleet.close(dispatch, monotonic())
        self._metrics.request_errors.labels(*call.labels, "upstream").inc()
        return error(reason, 502, "upstream_error")

    def _count(self, dispatch: Dispatch, model: str) -> None:
        pools, pair = self._fleet.pools, dispatch.pair
        for pool, leg, choice in zip(pools, dispatch.legs, (pair.prefill, pair.decode), strict=True):
            url = leg.backend.url
            self._metrics.selections.labels(pool.role, "http", model, pool.policy).inc()
            self._metrics.count(self._metrics.selected, url, pool.role, pool.policy, choice.reason)
            self._metrics.count(self._metrics.dispatched, url, model)
        self._metrics.matched.observe(pair.prefill.chosen.matched)
        self._metrics.transfer_cost.observe(pair.transfer_cost)

    async def _attempt(self, call: Call, dispatch: Dispatch) -> web.StreamResponse:
        host, port = dispatch.prefill.backend.host, dispatch.prefill.backend.bootstrap_port
        payload = call.inference.payload(host, port, dispatch.room)
        prefill = asyncio.create_task(self._prefill_leg(call, payload, dispatch.prefill))
        decode = asyncio.create_task(self._open(call, payload, dispatch.decode))
        try:
            await asyncio.sleep(0)  # both legs are on their way before anything is counted
            self._count(dispatch, call.model)
            await asyncio.wait({prefill, decode}, return_when=asyncio.FIRST_COMPLETED)
            if prefill.done():
                prefill.result()
            answer = await decode
            response = await self._relay(call, dispatch, answer)
            if response.status < 400 and not prefill.done():
                await asyncio.wait({prefill}, timeout=_PREFILL_TAIL_S)
            return response
        except PrefillRefused as refused:
            refused.answer.response.close()
            return self._whole(call, dispatch, refused.answer)
        finally:
            for task in (prefill, decode):
                task.cancel()
            for task in (prefill, decode):
                with suppress(asyncio.CancelledError, LegFailed, PrefillRefused):
                    await task
            if not decode.cancelled() and decode.exception() is None:
                decode.result().response.close()

    def _end(self, leg: Leg, ok: bool) -> None:
        if not leg.ended:
            self._fleet.end(leg, ok, monotonic())
            self._metrics.count(self._metrics.outcomes, leg.backend.url, "success" if ok else "failure")

    def _failed(self, leg: Leg, failure: BaseException) -> LegFailed:
        self._end(leg, False)
        given_up = not isinstance(failure, aiohttp.ClientError)  # our own limit, not one of the connection
        words = "it is silent and fails its probes" if given_up else str(failure) or type(failure).__name__
        return LegFailed(leg.backend, f"{leg.backend.url}: {words}")

    async def _prefill_leg(self, call: Call, payload: bytes, leg: Leg) -> None:
        answer = await self._open(call, payload, leg)
        if answer.response.status >= 400:
            self._end(leg, True)
            raise PrefillRefused(answer)
        try:
            async with answer.response, asyncio.timeout(None) as leg.limit:
                async for _ in answer.response.content.iter_any():
                    pass
        except (aiohttp.ClientError, TimeoutError) as failure:
            raise self._failed(leg, failure) from failure
        finally:
            leg.limit = None
        self._end(leg, True)
        self._metrics.prefill.labels("pd", call.model, "sglang").observe(monotonic() - leg.began)

    async def _open(self, call: Call, payload: bytes, leg: Leg) -> Answer:
        """Send one leg; returns with the first of its answer. A server error is a failure of the leg."""
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(None) as leg.limit:
                response = await self._dialer.post(
                    leg.backend, call.request.path, payload, call.request.headers
                )
                answer = Answer(response, b"")
                answer.first = await (
                    response.content.readany() if answer.streams else read_all(response, MOST_ANSWER_BYTES)
                )
        except (aiohttp.ClientError, TimeoutError) as failure:
            if response is not None:
                response.close()
            raise self._failed(leg, failure) from failure
        except asyncio.CancelledError:
            if response is not None:
                response.close()
            raise
        finally:
            leg.limit = None
        text = answer.first[:300].decode(errors="replace")
        # SGLang sends the head of a stream before it knows whether there will be one.
        broken = answer.streams and (
            not answer.first or answer.first.startswith((b'data: {"error"', b'data:{"error"'))
        )
        # A redirect is none of SGLang's answers: a client that followed it would leave the cluster.
        if broken or not (200 <= response.status < 300 or 400 <= response.status < 500):
            response.close()
            self._end(leg, False)
            raise LegFailed(leg.backend, f"{leg.backend.url} answered {response.status}: {text}")
        return answer

    def _headers(self, dispatch: Dispatch, answer: Answer) -> dict[str, str]:
        headers = {k: v for k, v in answer.response.headers.items() if k.lower() not in _HOP}
        headers["x-sglang-worker"] = headers["x-sglang-decode-worker"] = dispatch.decode.backend.url
        headers["x-sglang-prefill-worker"] = dispatch.prefill.backend.url
        return headers

    async def _relay(self, call: Call, dispatch: Dispatch, answer: Answer) -> web.StreamResponse:
        if answer.streams:
            return await self._stream(call, dispatch, answer)
        response = self._whole(call, dispatch, answer)
        self._end(dispatch.decode, True)
        return response

    def _whole(self, call: Call, dispatch: Dispatch, answer: Answer) -> web.Response:
        self._metrics.duration.labels(*call.labels).observe(monotonic() - dispatch.prefill.began)
        headers = self._headers(dispatch, answer)
        return web.Response(body=answer.first, status=answer.response.status, headers=headers)

    async def _stream(self, call: Call, dispatch: Dispatch, answer: Answer) -> web.StreamResponse:
        leg, content = dispatch.decode, answer.response.content
        first_at = last_at = monotonic()
        headers = self._headers(dispatch, answer)
        call.out = out = web.StreamResponse(status=answer.response.status, headers=headers)
        await out.prepare(call.request)
        part, tail, events, leg.streaming = answer.first, b"", 0, True
        try:
            async with asyncio.timeout(None) as leg.limit:
                await out.write(part)
                self._metrics.ttft.labels("pd", call.model, "sglang").observe(
                    first_at - dispatch.prefill.began
                )
                self._metrics.duration.labels(*call.labels).observe(first_at - dispatch.prefill.began)
                while part:
                    seen = part.count(b"data:")
                    events += seen
                    leg.progress(seen)
                    tail = part[-_TAIL_BYTES:] if len(part) >= _TAIL_BYTES else (tail + part)[-_TAIL_BYTES:]
                    if leg.limit.when() is not None:  # it fails its probes, but it goes on
                        leg.limit.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
                    last_at = monotonic()
                    part = await _next(content)
                    await out.write(part)
                if _LAST_EVENT not in tail:
                    raise _Cut from aiohttp.ClientPayloadError("the stream ended without its last event")
        except (_Cut, TimeoutError) as failure:
            self._metrics.request_errors.labels(*call.labels, "stream_broken").inc()
            return await _broken(call, out, self._failed(leg, failure.__cause__ or failure).reason)
        finally:
            leg.limit = None
        self._end(leg, True)
        self._observe_tpot(call, tail, events - tail.count(_LAST_EVENT), last_at - first_at)
        call.complete = True
        await out.write_eof()
        return out

    def _observe_tpot(self, call: Call, tail: bytes, events: int, seconds: float) -> None:
        produced = tokens_in(tail)
        count = events if produced is None else produced
        if count > 1:
            counted = "events" if produced is None else "tokens"
            self._metrics.tpot.labels("pd", call.model, "sglang", counted).observe(seconds / (count - 1))


class _Cut(Exception):
    """A worker's answer ended early; the cause says how."""


async def _next(content: aiohttp.StreamReader) -> bytes:
    """The next part of a worker's answer; its failures are told from those of the client's connection."""
    try:
        return await content.readany()
    except aiohttp.ClientError as failure:
        raise _Cut from failure


async def _broken(call: Call, out: web.StreamResponse, words: str) -> web.StreamResponse:
    """Tell the client of a stream that it has not got everything; one that does not read is cut."""
    body = {"error": {"type": "stream_error", "message": f"Stream error: {words}"}}
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            if not call.complete:
                await out.write(b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n")
                await out.write_eof()
                return out
    if call.request.transport is not None:
        call.request.transport.abort()
    return out


def error(message: str, status: int, code: str) -> web.Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"type": kind, "code": code, "message": message, "param": None}}
    headers = {"x-smg-error-code": code}
    if status == 503:
        headers["retry-after"] = "1"
    return web.json_response(body, status=status, headers=headers)
