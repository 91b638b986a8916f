"""The router as an HTTP server: inference, worker list, readiness, metrics, health probes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from time import monotonic

import aiohttp
from aiohttp import web

from pdtop import __version__
from pdtop.config.schema import Config
from pdtop.config.schema import Pool as PoolTable
from pdtop.gateway.metrics import RouterMetrics
from pdtop.gateway.policies import POLICIES
from pdtop.gateway.pool import Backend, Pool, Probes, Role
from pdtop.gateway.proxy import Proxy, error

_BOOTSTRAP_PORT = 8998  # SGLang's --disaggregation-bootstrap-port default
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Paths that are counted by name; all else is "other", so that no client can make series.
_INFERENCE = {"/v1/chat/completions": "chat", "/generate": "generate"}


class CannotServe(Exception):
    """The configuration asks for something that this router does not do; the text says what."""


def pools_of(config: Config, seed: int | None = None) -> tuple[Pool, Pool]:
    """The two pools that a configuration describes. Raises :class:`CannotServe`."""
    health = config.health

    def pool(role: Role, table: PoolTable) -> Pool:
        if table.policy not in POLICIES:
            known = ", ".join(POLICIES)
            raise CannotServe(f"{role}.policy = {table.policy!r}: this router has {known}")
        backends: list[Backend] = []
        for text in table.workers:
            settings = table.settings_of(text)
            url = (text if "://" in text else f"http://{text}").rstrip("/")
            probes = Probes(health.unhealthy_threshold, health.healthy_threshold)
            bootstrap = (settings.bootstrap_port or _BOOTSTRAP_PORT) if role == "prefill" else None
            backends.append(Backend(url, role, probes, bootstrap, settings.weight, settings.drain))
        return Pool(role, table.policy, backends, seed)

    return pool("prefill", config.prefill), pool("decode", config.decode)


class Gateway:
    """One router. ``app`` is its main port, ``metrics_app`` an optional second one for metrics alone."""

    def __init__(self, config: Config, seed: int | None = None) -> None:
        self.prefill, self.decode = pools_of(config, seed)
        self.metrics = RouterMetrics()
        self._health = config.health
        self._session: aiohttp.ClientSession | None = None
        self._probes: list[asyncio.Task[None]] = []
        self._proxy: Proxy | None = None
        self.app = self._main_app()
        self.metrics_app = web.Application()
        self.metrics_app.add_routes([web.get("/metrics", self._metrics)])

    @property
    def backends(self) -> Iterator[Backend]:
        yield from self.prefill
        yield from self.decode

    async def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        self._proxy = Proxy(self.prefill, self.decode, self._session, self.metrics)
        self._probes = [asyncio.create_task(self._probe(b, self._session)) for b in self.backends]

    async def stop(self) -> None:
        for task in self._probes:
            task.cancel()
        for task in self._probes:
            with suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()

    # ---- health

    async def _probe(self, backend: Backend, session: aiohttp.ClientSession) -> None:
        """Ask ``/health`` for ever; the first time after a part of the interval, so that they spread."""
        timeout = aiohttp.ClientTimeout(total=self._health.timeout_secs)
        await asyncio.sleep(random.uniform(0, min(1.0, self._health.interval_secs)))
        while True:
            if backend.model == "unknown":
                backend.model = await _served_model(session, backend.url, timeout) or "unknown"
            try:
                async with session.get(f"{backend.url}/health", timeout=timeout) as answer:
                    ok = answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                ok = False
            backend.probes.record(ok)
            self.metrics.checks.labels(backend.role, "success" if ok else "failure").inc()
            await asyncio.sleep(self._health.interval_secs)

    def _usable(self) -> dict[str, int]:
        now = monotonic()
        return {p.role: sum(b.usable(now) for b in p) for p in (self.prefill, self.decode)}

    # ---- HTTP

    def _main_app(self) -> web.Application:
        app = web.Application(middlewares=[self._count], client_max_size=64 * 2**20)
        app.on_response_prepare.append(_say_who)
        for path, endpoint in _INFERENCE.items():
            app.router.add_post(path, partial(self._inference, endpoint=endpoint))
        app.add_routes(
            [
                web.get("/health", self._alive),
                web.get("/liveness", self._alive),
                web.get("/readiness", self._readiness),
                web.get("/metrics", self._metrics),
                web.get("/workers", self._workers),
                web.get("/workers/{id}", self._worker),
                web.get("/get_loads", self._loads),
                web.get("/v1/models", self._models),
            ]
        )
        return app

    @web.middleware
    async def _count(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        self.metrics.http.labels(request.method if resource is not None else "other", path).inc()
        self.metrics.connections.inc()
        status, code = 499, "client_closed_request"
        try:
            response = await handler(request)
            status, code = response.status, response.headers.get("x-pdtop-error-code", "")
        except web.HTTPException as failure:
            code = "unknown_url" if failure.status == 404 else ""
            status = failure.status
            response = error(failure.reason, status, code)
        finally:
            self.metrics.connections.dec()
            self.metrics.responses.labels(path, str(status), code).inc()
        return response

    async def _inference(self, request: web.Request, endpoint: str) -> web.StreamResponse:
        if self._proxy is None:
            return error("not started", 503, "not_ready")
        return await self._proxy.handle(request, endpoint)

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _readiness(self, request: web.Request) -> web.Response:
        usable = self._usable()
        if not all(usable.values()):
            reason = "insufficient healthy workers"
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        total = sum(1 for _ in self.backends)
        return web.json_response(
            {"status": "ready", "healthy_workers": sum(usable.values()), "total_workers": total}
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        page = self.metrics.page(self.backends, monotonic())
        return web.Response(body=page, headers={"Content-Type": _CONTENT_TYPE})

    async def _workers(self, request: web.Request) -> web.Response:
        now = monotonic()
        workers = [b.as_json(now) for b in self.backends]
        stats = {
            "prefill_count": len(self.prefill.backends),
            "decode_count": len(self.decode.backends),
            "regular_count": 0,
        }
        return web.json_response({"workers": workers, "total": len(workers), "stats": stats})

    async def _worker(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        for backend in self.backends:
            if backend.worker_id == wanted:
                return web.json_response(backend.as_json(monotonic()))
        return error(f"worker {wanted} not found", 404, "worker_not_found")

    async def _loads(self, request: web.Request) -> web.Response:
        loads = [
            {"worker": b.url, "worker_type": b.role, "dp_rank": 0, "load": b.inflight} for b in self.backends
        ]
        return web.json_response(
            {
                "timestamp": datetime.now(UTC).isoformat(),
                "version": f"pdtop-{__version__}",
                "dp_rank_count": len(loads),
                "loads": loads,
            }
        )

    async def _models(self, request: web.Request) -> web.Response:
        names = sorted({b.model for b in self.backends} - {"unknown"})
        if not names:
            return error("no model is available", 503, "no_models_available")
        data = [{"id": n, "object": "model", "created": 0, "owned_by": "self_hosted"} for n in names]
        return web.json_response({"object": "list", "data": data})


async def _say_who(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = f"pdtop/{__version__}"


async def _served_model(
    session: aiohttp.ClientSession, url: str, limits: aiohttp.ClientTimeout
) -> str | None:
    """The name under which the worker serves its model; None if it does not say."""
    try:
        async with session.get(f"{url}/v1/models", timeout=limits) as answer:
            data = (await answer.json())["data"]
            return str(data[0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError):
        return None
