"""An open-loop load against a router, as its clients see it: ``python -m pdtop.simulator.load --url …``.

Streams and plain chat completions; what the clients saw (time to first token, time per token, failures) is
kept as the truth that a console's numbers can be compared with: ``GET /truth?since=epoch`` on a port.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections import Counter, deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from pdtop.gateway.lifecycle import run_until_told
from pdtop.simulator.scheduler import wall_clock
from pdtop.simulator.spec import MODEL_NAME
from pdtop.simulator.telemetry import TRUTH_SAMPLES
from pdtop.simulator.traffic import Arrival, Traffic, arrivals

#: Longest that a client waits for the next byte.
PATIENCE_S = 60.0

#: Requests in flight beyond which new ones are not sent but counted, so that a dead cluster costs no memory.
MOST_INFLIGHT = 2000


@dataclass(slots=True)
class Seen:
    """What the clients saw. Samples are (end of the request as epoch seconds, seconds)."""

    counts: Counter[str] = field(default_factory=Counter)
    ttft: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TRUTH_SAMPLES))
    tpot: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TRUTH_SAMPLES))
    e2e: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TRUTH_SAMPLES))

    def since(self, start: float) -> dict[str, object]:
        return {
            "at": wall_clock(),
            "counts": dict(self.counts),
            "ttft_s": [[at, v] for at, v in self.ttft if at >= start],
            "tpot_s": [[at, v] for at, v in self.tpot if at >= start],
            "e2e_s": [[at, v] for at, v in self.e2e if at >= start],
        }


class Load:
    """Sends a :class:`Traffic` to one router."""

    def __init__(self, url: str, traffic: Traffic, seed: int, model: str = MODEL_NAME) -> None:
        self.seen = Seen()
        self._url = url.rstrip("/") + "/v1/chat/completions"
        self._traffic = traffic
        self._seed = seed
        self._model = model
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, duration: float | None = None) -> None:
        """Send until ``duration`` seconds have passed (or for ever); waits for what is under way."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=PATIENCE_S)
        connector = aiohttp.TCPConnector(limit=0)
        started = wall_clock()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                for arrival in arrivals(self._traffic, self._seed):
                    if duration is not None and arrival.at > duration:
                        break
                    await asyncio.sleep(max(0.0, started + arrival.at - wall_clock()))
                    self._send(session, arrival)
                await asyncio.gather(*self._running)
            finally:
                for task in self._running:
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)

    def _send(self, session: aiohttp.ClientSession, arrival: Arrival) -> None:
        if len(self._running) >= MOST_INFLIGHT:
            self.seen.counts["not_sent"] += 1
            return
        task = asyncio.create_task(self._one(session, arrival))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _one(self, session: aiohttp.ClientSession, arrival: Arrival) -> None:
        counts = self.seen.counts
        counts["sent"] += 1
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": arrival.prompt}],
            "max_tokens": arrival.output_tokens,
            "stream": arrival.streaming,
        }
        started = wall_clock()
        first = last = 0.0
        tail = b""
        broken = False
        try:
            async with session.post(self._url, json=body) as answer:
                if answer.status != 200:
                    counts[f"http_{answer.status}"] += 1
                    await answer.read()
                    return
                async for part in answer.content.iter_any():
                    last = wall_clock()
                    first = first or last
                    broken = broken or b'"error"' in part
                    tail = (tail + part)[-64:]
        except (aiohttp.ClientError, TimeoutError) as failure:
            counts["broken" if first else f"failed_{type(failure).__name__}"] += 1
            return
        if broken or (arrival.streaming and b"[DONE]" not in tail):
            counts["broken"] += 1
            return
        counts["ok"] += 1
        counts["output_tokens"] += arrival.output_tokens
        self.seen.e2e.append((last, last - started))
        if arrival.streaming:
            self.seen.ttft.append((last, first - started))
            if arrival.output_tokens > 1:
                self.seen.tpot.append((last, (last - first) / (arrival.output_tokens - 1)))


async def _serve(load: Load, duration: float | None, sock: socket.socket | None) -> None:
    async def truth(request: web.Request) -> web.Response:
        return web.json_response(load.seen.since(float(request.query.get("since", 0))))

    app = web.Application()
    app.add_routes([web.get("/truth", truth)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.SockSite(runner, sock) if sock else web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(json.dumps({"truth": f"http://127.0.0.1:{runner.addresses[0][1]}/truth"}), flush=True)
    sending = asyncio.create_task(load.run(duration))
    told = asyncio.create_task(run_until_told())
    try:
        await asyncio.wait({sending, told}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
            print(json.dumps(load.seen.counts), flush=True)
            await told  # the truth stays readable
    finally:
        for task in (sending, told):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pdtop.simulator.load", description="open-loop load on a router")
    parser.add_argument("--url", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=Traffic().rate, help="requests per second")
    parser.add_argument("--duration", type=float, help="seconds; without it until stopped")
    parser.add_argument(
        "--traffic", default="{}", help="more of the traffic as JSON: " + ", ".join(asdict(Traffic()))
    )
    parser.add_argument("--truth-fd", type=int, help="listening socket for /truth")
    args = parser.parse_args(argv)
    traffic = Traffic(**{"rate": args.rate, **json.loads(args.traffic)})
    sock: socket.socket | None = None
    if args.truth_fd is not None:
        sock = socket.socket(fileno=args.truth_fd)
        sock.setblocking(False)
    asyncio.run(_serve(Load(args.url, traffic, args.seed), args.duration, sock))
    return 0


if __name__ == "__main__":
    sys.exit(main())
