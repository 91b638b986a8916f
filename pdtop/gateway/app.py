"""The router as an HTTP server: inference, worker list and admin API, readiness, metrics, configuration."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic

from aiohttp import web

from pdtop import __version__
from pdtop.config.schema import Config
from pdtop.config.watch import ConfigWatch
from pdtop.gateway.access import Keys, Side, refusal
from pdtop.gateway.admin import Admin, effective
from pdtop.gateway.dialing import Dialer
from pdtop.gateway.fleet import Fleet, check
from pdtop.gateway.inference import ENDPOINTS
from pdtop.gateway.metrics import RouterMetrics
from pdtop.gateway.probing import Prober
from pdtop.gateway.proxy import Proxy, error
from pdtop.gateway.reload import Reload, follow, restart_needed

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONGEST_ID = 256

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """One router. ``app`` is its main port, ``metrics_app`` an optional second one for metrics alone.

    ``watch`` follows the file that ``config`` came from; None: nothing is reloaded. ``exposed``: others than
    this machine can reach it; None: as ``[server] host`` says.
    """

    def __init__(
        self,
        config: Config,
        seed: int | None = None,
        *,
        watch: ConfigWatch | None = None,
        exposed: bool | None = None,
    ) -> None:
        self.fleet = Fleet(config, seed)
        self.metrics = RouterMetrics()
        self.last_reload: Reload | None = None
        self._started = config
        self._keys = Keys.of(config.server)
        self._watch = watch
        self._exposed = not is_loopback(config.server.host) if exposed is None else exposed
        self._following: asyncio.Task[None] | None = None
        self._dialer: Dialer | None = None
        self._prober: Prober | None = None
        self._proxy: Proxy | None = None
        self.app = self._main_app()
        self.metrics_app = web.Application()
        self.metrics_app.add_routes([web.get("/metrics", self._metrics)])

    async def start(self) -> None:
        config = self.fleet.config
        self._dialer = dialer = Dialer.open(config)
        self._prober = Prober(self.fleet, dialer, self.metrics)
        self._proxy = Proxy(self.fleet, dialer, self.metrics)
        self._prober.sync()
        if self._watch is not None:
            self._following = asyncio.create_task(follow(self._watch, self.apply, self._note))

    async def finish(self, grace_s: float) -> None:
        """Take no new requests and return when the last one has ended, or the grace is over."""
        if self._proxy is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._proxy.finish()

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        if self._prober is not None:
            await self._prober.stop()
        if self._dialer is not None:
            await self._dialer.close()

    def apply(self, config: Config) -> None:
        """Put a configuration in force for the next request. Raises ``CannotServe`` and changes nothing."""
        check(config)
        if self._dialer is not None:
            self._dialer.apply(config)
        for key in restart_needed(self.fleet.config, config):
            log.warning("%s has changed: that counts after a restart of this router", key)
        self.fleet.apply(config)
        self._keys = Keys.of(config.server)
        if self._prober is not None:
            self._prober.renew()

    def _note(self, reload: Reload) -> None:
        self.last_reload = reload
        self.metrics.reloaded(reload)

    def _changed(self) -> None:
        if self._prober is not None:
            self._prober.sync()

    # ---- HTTP

    def _main_app(self) -> web.Application:
        app = web.Application(middlewares=[self._count], client_max_size=64 * 2**20)
        app.on_response_prepare.append(_say_who)
        for path in ENDPOINTS:
            app.router.add_post(path, self._for("data", self._inference))
        admin = Admin(self.fleet, self._changed)
        app.add_routes(
            [
                web.get("/health", self._alive),
                web.get("/liveness", self._alive),
                web.get("/readiness", self._readiness),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.get("/config", self._for("read", self._config)),
                web.get("/get_loads", self._for("read", self._loads)),
                web.get("/workers", self._for("read", admin.list)),
                web.get("/workers/{id}", self._for("read", admin.show)),
                web.post("/workers", self._for("change", admin.add)),
                web.patch("/workers/{id}", self._for("change", admin.change)),
                web.delete("/workers/{id}", self._for("change", admin.remove)),
            ]
        )
        return app

    def _for(self, side: Side, handler: Handler) -> Handler:
        """The handler behind its keys."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            refused = refusal(
                self._keys,
                side,
                request.headers.get("Authorization"),
                exposed=self._exposed,
                page="Origin" in request.headers,
            )
            if refused is None:
                return await handler(request)
            answer = error(refused.words, refused.status, refused.code)
            if refused.status == 401:
                realm = "data-plane" if side == "data" else "control-plane"
                answer.headers["WWW-Authenticate"] = f'Bearer realm="{realm}"'
            return answer

        return guarded

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        method = request.method if resource is not None else "other"
        self.metrics.http.labels(method, path).inc()
        self.metrics.connections.inc()
        status, code = 499, "client_closed_request"
        try:
            response = await handler(request)
            status, code = response.status, response.headers.get("x-smg-error-code", "")
        except web.HTTPException as failure:
            status = failure.status
            code = {404: "unknown_url", 405: "method_not_allowed"}.get(status, "")
            response = error(failure.reason, status, code)
        except ConnectionResetError:
            response = web.Response()  # the client's connection is closing: nobody hears it
        except Exception:
            status, code = 500, "internal_error"
            raise
        finally:
            self.metrics.connections.dec()
            self.metrics.responses.labels(path, str(status), code).inc()
        return response

    async def _inference(self, request: web.Request) -> web.StreamResponse:
        if self._proxy is None:
            return error("not started", 503, "not_ready")
        return await self._proxy.handle(request, ENDPOINTS[request.path][0])

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _readiness(self, request: web.Request) -> web.Response:
        if self._proxy is not None and self._proxy.closing:
            return web.json_response({"status": "not ready", "reason": "draining"}, status=503)
        now = monotonic()
        usable = [sum(b.usable(now) for b in pool) for pool in self.fleet.pools]
        if not all(usable):
            reason = "insufficient healthy workers"
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        total = sum(len(pool) for pool in self.fleet.pools)
        return web.json_response({"status": "ready", "healthy_workers": sum(usable), "total_workers": total})

    async def _metrics(self, request: web.Request) -> web.Response:
        now = monotonic()
        weights = self.fleet.config.load
        page = self.metrics.page(((b, b.load(weights, now)) for b in self.fleet), now)
        return web.Response(body=page, headers={"Content-Type": _CONTENT_TYPE})

    async def _config(self, request: web.Request) -> web.Response:
        """The settings in force, how the last reload ended, and what is not as the file says."""
        reload = self.last_reload
        return web.json_response(
            {
                "config": effective(self.fleet.config),
                "file": str(self._watch.path) if self._watch is not None else None,
                "reload": {
                    "outcome": reload.outcome if reload else "none",
                    "at": reload.at if reload else None,
                    "words": reload.words if reload else "",
                },
                "restart_needed": restart_needed(self._started, self.fleet.config),
                "transient": self.fleet.transient,
            }
        )

    async def _loads(self, request: web.Request) -> web.Response:
        now = monotonic()
        weights = self.fleet.config.load
        loads = [
            {
                "worker": b.url,
                "worker_type": b.role,
                "dp_rank": 0,
                "load": b.inflight,
                "score": b.load(weights, now),
            }
            for b in self.fleet
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
        names = sorted({b.model for b in self.fleet} - {"unknown"})
        if not names:
            return error("no model is available", 503, "no_models_available")
        data = [{"id": n, "object": "model", "created": 0, "owned_by": "self_hosted"} for n in names]
        return web.json_response({"object": "list", "data": data})


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _new_id(path: str) -> str:
    start = ENDPOINTS[path][1] if path in ENDPOINTS else "req"
    return f"{start}-{uuid.uuid4().hex[:24]}"


async def _say_who(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = f"pdtop/{__version__}"
    given = request.headers.get("x-request-id", "")
    response.headers["x-request-id"] = given[:_LONGEST_ID] or _new_id(request.path)
