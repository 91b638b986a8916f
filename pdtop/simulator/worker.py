"""One simulated SGLang 0.5.23 worker: its HTTP over its engines; as a program, one worker or several.

``python -m pdtop.simulator.worker --role prefill --port 30001 --bootstrap-port 8998`` starts one;
``--spec JSON`` (repeatable) starts several in one process. One JSON line on stdout gives the addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from pdtop.gateway.lifecycle import run_until_told
from pdtop.simulator import identity, protocol
from pdtop.simulator.bootstrap import BootstrapServer, fetch_kv
from pdtop.simulator.decode import DecodeEngine
from pdtop.simulator.engine import Ended, Event, Granted, KvSent, Output
from pdtop.simulator.loads import ALL_SECTIONS, KNOWN_SECTIONS, loads_answer, loads_text
from pdtop.simulator.prefill import PrefillEngine
from pdtop.simulator.protocol import BadRequest, Call
from pdtop.simulator.scheduler import Scheduler, wall_clock
from pdtop.simulator.spec import Fault, WorkerSpec
from pdtop.simulator.telemetry import VERSION, Engine, WorkerTelemetry

_GONE = 499
_TEXT = "text/plain; version=0.0.4; charset=utf-8"

#: Routers try HTTP/2 first; that a worker does not speak it is no news.
_LOG = logging.getLogger("pdtop.simulator.http")
_LOG.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], BadHttpMessage)))


class SimWorker:
    """See the module. ``start`` listens, ``url`` and ``bootstrap_port`` are known after it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.url = ""
        self.bootstrap_port = 0
        self.telemetry = WorkerTelemetry(
            spec.role, spec.model_name, spec.dp, spec.tp, os.getpid(), wall_clock()
        )
        self.schedulers = [
            Scheduler(self._engine(rank), functools.partial(self._deliver, rank)) for rank in range(spec.dp)
        ]
        self.telemetry.start(self.engines, wall_clock())
        self._inboxes: dict[str, asyncio.Queue[Output | Ended]] = {}
        self._calls: dict[str, Call] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._next_rank = 0
        self._unhealthy = False
        self._created = int(time.time())
        self._runners: list[web.AppRunner] = []
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.bootstrap = BootstrapServer(
            {"attn_tp_size": spec.tp, "attn_cp_size": 1, "dp_size": spec.dp, "pp_size": 1, "page_size": 1},
            grant=lambda room, site: self._prefill(room, lambda e, now: e.grant(room, site, now)),
            revoke=lambda room: self._prefill(room, lambda e, now: e.revoke(room, now)),
        )

    @property
    def engines(self) -> list[Engine]:
        return [s.engine for s in self.schedulers]

    # ---- life

    async def start(self) -> None:
        spec = self.spec
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        if spec.role == "prefill":
            bootstrap = await self._listen(self.bootstrap.app, spec.bootstrap_port, spec.bootstrap_fd)
            self.bootstrap_port = bootstrap
        port = await self._listen(self._app(), spec.port, spec.fd)
        self.url = f"http://{spec.host}:{port}"
        for fault in spec.faults:
            self._spawn(self._later(fault))

    async def stop(self) -> None:
        for task in (*self._tasks, *self._fetches.values()):
            task.cancel()
        for scheduler in self.schedulers:
            scheduler.stop()
        for runner in self._runners:
            await runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def fault(self, fault: Fault) -> None:
        """Start some trouble now, whatever its ``at``."""
        for scheduler in self.schedulers:
            engine = scheduler.engine
            match fault.kind:
                case "hang":
                    scheduler.hang()
                case "resume":
                    scheduler.resume()
                case "slow":
                    engine.slow = fault.value
                case "die":
                    os._exit(137)
                case "transfer_slow" if isinstance(engine, PrefillEngine):
                    engine.transfer_slow = fault.value
                case "transfer_fail" if isinstance(engine, PrefillEngine):
                    engine.transfer_fail_rate = fault.value

    async def _later(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        self.fault(fault)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _engine(self, rank: int) -> Engine:
        spec, observer = self.spec, self.telemetry.ranks[rank]
        if spec.role == "prefill":
            return PrefillEngine(spec.prefill, observer, wall_clock(), spec.seed + rank)
        return DecodeEngine(spec.decode, observer, wall_clock())

    async def _listen(self, app: web.Application, port: int, fd: int | None) -> int:
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1, logger=_LOG
        )
        await runner.setup()
        self._runners.append(runner)
        if fd is not None:
            sock = socket.socket(fileno=fd)
            sock.setblocking(False)
            await web.SockSite(runner, sock).start()
            return int(sock.getsockname()[1])
        site = web.TCPSite(runner, self.spec.host, port)
        await site.start()
        return int(runner.addresses[0][1])

    # ---- between engines and requests

    def _prefill(self, room: int, step: Callable[[PrefillEngine, float], list[Event]]) -> None:
        scheduler = self.schedulers[room % len(self.schedulers)]
        engine = scheduler.engine
        if isinstance(engine, PrefillEngine):
            scheduler.act(lambda now: step(engine, now))

    def _deliver(self, rank: int, event: Event) -> None:
        match event:
            case KvSent():
                self.bootstrap.sent(event)
            case Granted(room=room, rid=rid):
                fetch = asyncio.ensure_future(self._fetch(rank, room, rid))
                self._fetches[rid] = fetch
            case Output() | Ended():
                inbox = self._inboxes.get(event.rid)
                if inbox is not None:
                    inbox.put_nowait(event)

    async def _fetch(self, rank: int, room: int, rid: str) -> None:
        call = self._calls.get(rid)
        scheduler = self.schedulers[rank]
        engine = scheduler.engine
        if call is None or self._session is None or not isinstance(engine, DecodeEngine):
            return
        address = f"{call.bootstrap_host}:{call.bootstrap_port}"
        arrival = await fetch_kv(self._session, address, room, self.spec.decode.site)
        self._fetches.pop(rid, None)
        scheduler.act(lambda now: engine.kv_arrived(room, arrival.ok, arrival.cached_tokens, now))

    def _rank_of(self, room: int) -> int:
        if self.spec.role == "prefill":
            return room % len(self.schedulers)
        self._next_rank = (self._next_rank + 1) % len(self.schedulers)
        return self._next_rank

    # ---- HTTP

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._count], client_max_size=64 * 2**20)
        inference = functools.partial(self._inference, chat=False)
        chat = functools.partial(self._inference, chat=True)
        routes = [
            web.get("/metrics", self._metrics),
            web.get("/metrics/", self._metrics),
            web.get("/v1/loads", self._loads),
            web.get("/health", self._health),
            web.get("/health_generate", self._health),
            web.get("/ready", self._ready),
            web.get("/v1/models", self._models),
            web.post("/generate", inference),
            web.post("/v1/chat/completions", chat),
            web.post("/flush_cache", self._flush),
            web.get("/flush_cache", self._flush),
            web.post("/abort_request", self._abort),
            web.get("/truth", self._truth),
            web.post("/sim/fault", self._fault),
        ]
        for path in ("/server_info", "/get_server_info"):
            routes.append(web.get(path, self._server_info))
        for path in ("/model_info", "/get_model_info"):
            routes.append(web.get(path, self._model_info))
        app.add_routes(routes)
        return app

    @web.middleware
    async def _count(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        known = request.match_info.route.resource
        path = known.canonical if known is not None else "/*"
        registry = self.telemetry.registry
        labels = {"endpoint": path, "method": request.method if known is not None else "GET"}
        registry.value("http_requests", labels).value += 1
        active = registry.value("http_requests_active", labels)
        active.value += 1
        status = _GONE
        try:
            response = await handler(request)
            status = response.status
        except web.HTTPException as failure:
            status = failure.status
            response = web.json_response({"detail": failure.reason}, status=status)
        except ConnectionResetError:
            response = web.Response()  # the client's connection is closing: nobody hears it
        finally:
            active.value -= 1
            if status != _GONE:
                answered = {"endpoint": path, "method": labels["method"], "status_code": str(status)}
                registry.value("http_responses", answered).value += 1
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.spec.enable_metrics:
            raise web.HTTPNotFound
        for scheduler in self.schedulers:
            scheduler.sync()
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        kind = _TEXT
        if openmetrics:
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"
        body = (
            b"" if "name[]" in request.query else self.telemetry.page(self.engines, wall_clock(), openmetrics)
        )
        response = web.Response(body=body, headers={"Content-Type": kind})
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async def _loads(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        sections = frozenset(filter(None, request.query.get("include", "all").split(",")))
        if not sections <= KNOWN_SECTIONS:
            return web.Response(status=500, text="Internal Server Error")
        if "all" in sections:
            sections = ALL_SECTIONS
        wanted = request.query.get("dp_rank")
        rank = int(wanted) if wanted is not None and wanted.isdigit() else None
        for scheduler in self.schedulers:
            scheduler.sync()
        now = wall_clock()
        answer = self.telemetry.loads(self.engines, now, sections, rank, self.spec.max_running)
        self.telemetry.observe_loads(time.perf_counter() - started)
        if request.query.get("format") == "prometheus":
            return web.Response(text=loads_text(answer), headers={"Content-Type": _TEXT})
        return web.json_response(loads_answer(now, VERSION, answer))

    async def _health(self, request: web.Request) -> web.Response:
        """One token through the scheduler, looked for once a second."""
        await asyncio.sleep(self.spec.health_s)
        if any(s.engine.frozen for s in self.schedulers):
            await asyncio.sleep(max(0.0, self.spec.health_timeout_s - self.spec.health_s))
            if any(s.engine.frozen for s in self.schedulers):
                self._unhealthy = True
                return web.Response(status=503)
        self._unhealthy = False
        for rank in self.telemetry.ranks:
            rank.health_check()
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._unhealthy else 200)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(identity.models(self.spec, self._created))

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response(identity.model_info(self.spec))

    async def _server_info(self, request: web.Request) -> web.Response:
        for scheduler in self.schedulers:
            await scheduler.answer()
        port = int(self.url.rpartition(":")[2])
        throughput = max(s.engine.gauges(wall_clock()).gen_throughput for s in self.schedulers)
        return web.json_response(identity.server_info(self.spec, port, self.bootstrap_port, throughput))

    async def _flush(self, request: web.Request) -> web.Response:
        if not all(e.idle for e in self.engines):
            return web.Response(status=400, text="Flush cache failed: there are requests in progress.\n")
        for engine in self.engines:
            if isinstance(engine, PrefillEngine):
                engine.pool.flush()
        return web.Response(text="Cache flushed.\nPlease check backend logs for more details.\n")

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        rids = list(self._calls) if body.get("abort_all") else [str(body.get("rid", ""))]
        for rid in rids:
            self._drop(rid)
        return web.Response()

    async def _truth(self, request: web.Request) -> web.Response:
        since = float(request.query.get("since", 0))
        return web.json_response(self.telemetry.truth_now(self.engines, wall_clock(), since))

    async def _fault(self, request: web.Request) -> web.Response:
        self.fault(Fault(**await request.json()))
        return web.json_response({"ok": True})

    # ---- inference

    async def _inference(self, request: web.Request, chat: bool) -> web.StreamResponse:
        rid = uuid.uuid4().hex
        try:
            call = protocol.read_call(
                await request.json(), chat, rid, self.spec.stream_interval, self.spec.model_name
            )
        except (BadRequest, ValueError) as failure:
            return _error(str(failure), 400)
        inbox: asyncio.Queue[Output | Ended] = asyncio.Queue()
        self._inboxes[rid] = inbox
        self._calls[rid] = call
        scheduler = self.schedulers[self._rank_of(call.request.room)]
        self.telemetry.truth.counts["received"] += 1
        scheduler.act(lambda now: scheduler.engine.submit(call.request, now))
        try:
            return await self._answer(request, call, inbox)
        finally:
            del self._inboxes[rid]
            self._drop(rid, scheduler)
            self._calls.pop(rid, None)

    async def _answer(
        self, request: web.Request, call: Call, inbox: asyncio.Queue[Output | Ended]
    ) -> web.StreamResponse:
        stream: web.StreamResponse | None = None
        produced = 0
        while True:
            event = await inbox.get()
            if isinstance(event, Output):
                produced = event.total
                if call.request.streaming:
                    stream = stream or await _open_stream(request)
                    await stream.write(protocol.stream_part(call, event.tokens, event.total))
                continue
            if event.error and stream is None:
                return _error(event.error, 500)
            if not call.request.streaming:
                return web.json_response(protocol.whole_answer(call, max(produced, 1), event.cached_tokens))
            if stream is None:  # prefill: its one token comes with the end
                stream = await _open_stream(request)
                await stream.write(protocol.stream_part(call, 1, 1))
            end = protocol.stream_end(call, max(produced, 1), event.cached_tokens)
            await stream.write(protocol.stream_error(event.error) if event.error else end)
            await stream.write_eof()
            return stream

    def _drop(self, rid: str, scheduler: Scheduler | None = None) -> None:
        """The client is gone or served: nothing of the request may stay behind."""
        fetch = self._fetches.pop(rid, None)
        if fetch is not None:
            fetch.cancel()
        for one in [scheduler] if scheduler is not None else self.schedulers:
            one.act(functools.partial(one.engine.abort, rid))


async def _open_stream(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await stream.prepare(request)
    return stream


def _error(message: str, status: int) -> web.Response:
    return web.Response(
        body=protocol.error_body(message, status), status=status, content_type="application/json"
    )


async def serve(specs: list[WorkerSpec]) -> None:
    """Start the workers, say where they are, and run until told to stop."""
    workers = [SimWorker(spec) for spec in specs]
    try:
        for worker in workers:
            await worker.start()
        places = [{"role": w.spec.role, "url": w.url, "bootstrap_port": w.bootstrap_port} for w in workers]
        print(json.dumps({"workers": places}), flush=True)
        await run_until_told()
    finally:
        for worker in workers:
            with suppress(asyncio.CancelledError):
                await worker.stop()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pdtop.simulator.worker", description="a simulated SGLang worker")
    parser.add_argument("--role", choices=("prefill", "decode"), default="prefill")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bootstrap-port", type=int, default=0)
    parser.add_argument("--dp-size", type=int, default=1)
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument("--stream-interval", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spec", action="append", default=[], help="a worker as JSON, instead of the above")
    args = parser.parse_args(argv)
    specs = [WorkerSpec.from_json(text) for text in args.spec] or [
        WorkerSpec(
            role=args.role,
            host=args.host,
            port=args.port,
            bootstrap_port=args.bootstrap_port,
            dp=args.dp_size,
            tp=args.tp_size,
            stream_interval=args.stream_interval,
            seed=args.seed,
        )
    ]
    asyncio.run(serve(specs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
