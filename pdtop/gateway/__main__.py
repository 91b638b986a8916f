"""The embedded router as a program: ``python -m pdtop.gateway config.toml``.

The file is followed while it runs: everything in it but the listening address counts from the next request.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import socket
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pdtop.config.load import Loaded, load
from pdtop.config.watch import ConfigWatch
from pdtop.gateway.app import Gateway, is_loopback
from pdtop.gateway.fleet import CannotServe
from pdtop.gateway.lifecycle import allow_many_connections, follows_parent, run_until_told

#: Longest that the end waits for requests that are under way; a second signal ends it at once.
GRACE_S = 180.0


async def serve(
    loaded: Loaded,
    *,
    fd: int | None = None,
    metrics_fd: int | None = None,
    metrics_port: int | None = None,
    seed: int | None = None,
) -> None:
    """Run until told to stop. ``fd`` and ``metrics_fd`` are listening sockets to take over."""
    config = loaded.config
    if config is None:
        raise CannotServe("\n".join(problem.text for problem in loaded.problems))
    taken = socket.socket(fileno=fd) if fd is not None else None
    host = str(taken.getsockname()[0]) if taken is not None else config.server.host
    gateway = Gateway(config, seed, watch=ConfigWatch(loaded), exposed=not is_loopback(host))
    runners: list[web.AppRunner] = []

    async def listen(app: web.Application, sock: socket.socket | None, port: int) -> str:
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await runner.setup()
        runners.append(runner)
        if sock is None:
            try:
                await web.TCPSite(runner, config.server.host, port).start()
            except OSError as error:
                words = f"cannot listen on {config.server.host}:{port}: {error.strerror or error}"
                raise CannotServe(words) from error
        else:
            sock.setblocking(False)
            await web.SockSite(runner, sock).start()
        host, number = runner.addresses[0][:2]
        return f"http://{host}:{number}"

    try:
        await gateway.start()
        places = {"url": await listen(gateway.app, taken, config.server.port)}
        if metrics_fd is not None or metrics_port is not None:
            second = socket.socket(fileno=metrics_fd) if metrics_fd is not None else None
            base = await listen(gateway.metrics_app, second, metrics_port or 0)
            places["metrics_url"] = f"{base}/metrics"
        print(json.dumps(places), flush=True)
        gc.freeze()  # what stays for ever is not looked through again and again
        await run_until_told()
        if not follows_parent():
            for site in tuple(runners[0].sites):
                await site.stop()
            await _either(gateway.finish(GRACE_S), run_until_told())  # told again: at once
    finally:
        for runner in runners:
            await runner.cleanup()
        await gateway.stop()


def is_own_fault(record: logging.LogRecord) -> bool:
    """False for requests that are no HTTP: clients must not be able to fill the log with tracebacks."""
    failure = record.exc_info[1] if record.exc_info else None
    return not isinstance(failure, HttpProcessingError)


async def _either(*works: Coroutine[object, object, None]) -> None:
    """Return when one of them has ended; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pdtop.gateway", description="the embedded PD router")
    parser.add_argument("config", type=Path)
    parser.add_argument("--fd", type=int, help="listening socket to take over")
    parser.add_argument("--metrics-fd", type=int, help="listening socket for metrics to take over")
    parser.add_argument("--metrics-port", type=int, help="a second port for /metrics")
    parser.add_argument("--seed", type=int)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").addFilter(is_own_fault)
    allow_many_connections()
    try:
        asyncio.run(
            serve(
                load(args.config),
                fd=args.fd,
                metrics_fd=args.metrics_fd,
                metrics_port=args.metrics_port,
                seed=args.seed,
            )
        )
    except CannotServe as reason:
        print(reason, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
