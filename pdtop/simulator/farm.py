"""Very many workers from one process, for benchmarks: ``python -m pdtop.simulator.farm --workers 256``.

A few real engines run in virtual time behind the scenes (the *lanes*); every worker shows the page of one
lane, written once a second and shared, so that serving costs little more than the bytes. Values move, pages
have a real worker's size, ``--ranks`` multiplies it. One JSON line on stdout gives the addresses; the
control port answers ``/truth?worker=N&since=epoch``, ``/stats`` and ``/fault?worker=N&kind=hang|none``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from aiohttp import web

from pdtop.gateway.lifecycle import run_until_told
from pdtop.simulator import identity
from pdtop.simulator.children import listening
from pdtop.simulator.loads import ALL_SECTIONS, loads_answer
from pdtop.simulator.scheduler import wall_clock
from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.telemetry import VERSION
from pdtop.simulator.traffic import Arrival, Traffic, arrivals
from pdtop.simulator.virtual import VirtualCluster, VirtualWorker, least_loaded

_TICK_S = 1.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Lane:
    """One worker's engines and its answers, written at most once a tick."""

    def __init__(self, worker: VirtualWorker) -> None:
        self.worker = worker
        self._page = b""
        self._zipped: bytes | None = None
        self._loads: bytes | None = None

    def tick(self, now: float) -> None:
        self._page = self.worker.telemetry.page(self.worker.engines, now)
        self._zipped = None
        self._loads = None

    def page(self, zipped: bool) -> bytes:
        if not zipped:
            return self._page
        if self._zipped is None:
            packer = zlib.compressobj(6, zlib.DEFLATED, 31)
            self._zipped = packer.compress(self._page) + packer.flush()
        return self._zipped

    def loads(self, now: float) -> bytes:
        if self._loads is None:
            entries = self.worker.telemetry.loads(self.worker.engines, now, ALL_SECTIONS, None, 64)
            self._loads = json.dumps(loads_answer(now, VERSION, entries)).encode()
        return self._loads


class Farm:
    """See the module."""

    def __init__(self, workers: int, prefill: int, lanes: int, ranks: int, rate: float, seed: int) -> None:
        spread = max(1, lanes // 2)
        specs = [WorkerSpec(role="prefill", dp=ranks, seed=seed + i) for i in range(spread)]
        specs += [WorkerSpec(role="decode", dp=ranks, seed=seed + i) for i in range(spread)]
        started = wall_clock()
        self.cluster = VirtualCluster.make(specs, started)
        self.prefill_lanes = [Lane(w) for w in self.cluster.prefill]
        self.decode_lanes = [Lane(w) for w in self.cluster.decode]
        self.roles = ["prefill"] * prefill + ["decode"] * (workers - prefill)
        self.requests = 0
        self.scrapes = 0
        self.bytes = 0
        self.hung: set[int] = set()
        self._started = started
        self._traffic: Iterator[Arrival] = arrivals(Traffic(rate=rate * spread, prefixes=12), seed)
        self._tick(started)

    def lane(self, worker: int) -> Lane:
        lanes = self.prefill_lanes if self.roles[worker] == "prefill" else self.decode_lanes
        return lanes[worker % len(lanes)]

    def addresses(self, sockets: Sequence[socket.socket]) -> dict[str, list[str]]:
        """``host:port`` of the workers by role, in the order of ``sockets``."""
        found: dict[str, list[str]] = {"prefill": [], "decode": []}
        for role, sock in zip(self.roles, sockets, strict=True):
            found[role].append(f"127.0.0.1:{sock.getsockname()[1]}")
        return found

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._tick(wall_clock())

    def _tick(self, now: float) -> None:
        self._traffic = self.cluster.feed(self._traffic, now, self._started, least_loaded)
        for lane in (*self.prefill_lanes, *self.decode_lanes):
            lane.tick(now)

    async def answer(self, worker: int, request: web.BaseRequest) -> web.StreamResponse:
        """One worker's HTTP, in SGLang's words."""
        self.requests += 1
        if worker in self.hung:
            await asyncio.Event().wait()
        lane, now = self.lane(worker), wall_clock()
        spec = lane.worker.spec
        match request.path:
            case "/metrics" | "/metrics/":
                zipped = "gzip" in request.headers.get("Accept-Encoding", "")
                body = lane.page(zipped)
                self.scrapes += 1
                self.bytes += len(body)
                headers = {"Content-Type": _METRICS_TYPE}
                if zipped:
                    headers["Content-Encoding"] = "gzip"
                return web.Response(body=body, headers=headers)
            case "/v1/loads":
                return web.Response(body=lane.loads(now), content_type="application/json")
            case "/health" | "/health_generate":
                await asyncio.sleep(1.0)
                return web.Response()
            case "/ready":
                return web.Response()
            case "/v1/models":
                return web.json_response(identity.models(spec, int(self._started)))
            case "/model_info" | "/get_model_info":
                return web.json_response(identity.model_info(spec))
            case "/server_info" | "/get_server_info":
                # The port tells the workers of one lane apart: else they would be one under many names.
                port = request.transport.get_extra_info("sockname")[1] if request.transport else 0
                return web.json_response(identity.server_info(spec, port, 8998, 0.0))
            case _:
                return web.json_response({"detail": "Not Found"}, status=404)

    def control(self) -> web.Application:
        async def truth(request: web.Request) -> web.Response:
            worker = self.lane(int(request.query.get("worker", 0))).worker
            since = float(request.query.get("since", 0))
            now = wall_clock()
            return web.json_response(worker.telemetry.truth_now(worker.engines, now, since))

        async def stats(request: web.Request) -> web.Response:
            used = resource.getrusage(resource.RUSAGE_SELF)
            return web.json_response(
                {
                    "requests": self.requests,
                    "scrapes": self.scrapes,
                    "metrics_bytes": self.bytes,
                    "cpu_s": used.ru_utime + used.ru_stime,
                    "page_bytes": {
                        "prefill": len(self.prefill_lanes[0].page(False)),
                        "decode": len(self.decode_lanes[0].page(False)),
                    },
                }
            )

        async def fault(request: web.Request) -> web.Response:
            worker = int(request.query["worker"])
            (self.hung.add if request.query.get("kind") == "hang" else self.hung.discard)(worker)
            return web.json_response({"hung": sorted(self.hung)})

        app = web.Application()
        app.add_routes([web.get("/truth", truth), web.get("/stats", stats), web.get("/fault", fault)])
        return app


def config_text(addresses: Mapping[str, Sequence[str]]) -> str:
    """A config.toml for the farm; there is no router in front of it."""
    lines: list[str] = []
    for role, members in addresses.items():
        lines += [f"[{role}]", "workers = [", *(f'    "{a}",' for a in members), "]", ""]
    return "\n".join(lines)


async def serve(farm: Farm, sockets: Sequence[socket.socket]) -> None:
    """Answer on one socket for each worker and on a control port, until told to stop."""
    loop = asyncio.get_running_loop()
    servers: list[asyncio.Server] = []
    for worker, sock in enumerate(sockets):
        protocol = web.Server(partial(farm.answer, worker), access_log=None)
        servers.append(await loop.create_server(protocol, sock=sock))
    runner = web.AppRunner(farm.control(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    addresses = farm.addresses(sockets)
    control = f"http://127.0.0.1:{runner.addresses[0][1]}"
    print(json.dumps({**addresses, "control": control}), flush=True)
    ticking = asyncio.create_task(farm.run())
    try:
        await run_until_told()
    finally:
        ticking.cancel()
        for server in servers:
            server.close()
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pdtop.simulator.farm", description="many simulated workers")
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--prefill", type=int, help="how many of them are prefill; default a quarter")
    parser.add_argument("--lanes", type=int, default=8, help="different pages behind the workers")
    parser.add_argument("--ranks", type=int, default=1, help="DP ranks of each worker: the page's size")
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second and prefill lane")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=Path, help="write a config.toml for pdtop here")
    args = parser.parse_args(argv)
    prefill = args.prefill if args.prefill is not None else max(1, args.workers // 4)
    if not 0 <= prefill <= args.workers:
        parser.error("--prefill must be between 0 and --workers")
    farm = Farm(args.workers, prefill, args.lanes, args.ranks, args.rate, args.seed)
    sockets = [listening() for _ in farm.roles]
    for sock in sockets:
        sock.setblocking(False)
    if args.config is not None:
        args.config.write_text(config_text(farm.addresses(sockets)), encoding="utf-8")
    asyncio.run(serve(farm, sockets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
