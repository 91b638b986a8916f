"""The router that config.toml names, as a program: ``python -m pdtop.supervisor config.toml [-- FLAG]``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from pdtop.cluster.http import Dialler
from pdtop.config.load import Loaded, load
from pdtop.config.schema import Config
from pdtop.config.watch import ConfigWatch
from pdtop.gateway.lifecycle import allow_many_connections, follows_parent
from pdtop.supervisor.engines import CannotRun, Engine
from pdtop.supervisor.launching import secrets
from pdtop.supervisor.output import Output
from pdtop.supervisor.starting import Starter
from pdtop.supervisor.status import StatusPage
from pdtop.supervisor.supervisor import GRACE_S, Supervisor, first_engine


def run(
    path: Path,
    further: Sequence[str] = (),
    *,
    grace_s: float = GRACE_S,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Run the engine of ``path`` until told to end; exit code 2 if it cannot be run as the file stands.

    ``further``: flags for smg or sglang-router that config.toml has no key for.
    """
    environ = os.environ if environ is None else environ
    loaded = load(path)
    try:
        engine = first_engine(loaded)
        if engine is None:
            from pdtop.gateway.__main__ import main as embedded

            if further:
                raise CannotRun(
                    "further flags are for smg and sglang-router; this file runs pdtop's own router"
                )
            return embedded([str(path), *metrics_port(loaded.config or Config())])
        asyncio.run(_supervise(loaded, engine, further, grace_s, environ))
    except CannotRun as reason:
        print(reason, file=sys.stderr)
        return 2
    return 0


def metrics_port(config: Config) -> tuple[str, ...]:
    """The flag with the embedded router's second port, if [server] metrics_url names one: as smg has it."""
    named = None
    with suppress(ValueError):
        named = urlsplit(config.server.metrics_url or "").port
    return ("--metrics-port", str(named)) if named not in (None, config.server.port) else ()


async def _supervise(
    loaded: Loaded, engine: Engine, further: Sequence[str], grace_s: float, environ: Mapping[str, str]
) -> None:
    allow_many_connections()
    output = Output(sys.stderr, secrets(loaded.config or Config(), environ))
    try:
        with tempfile.TemporaryDirectory(prefix="pdtop-router-") as folder:
            async with Dialler() as dialler:
                starter = Starter(dialler, Path(folder), output, environ)
                supervisor = Supervisor(
                    ConfigWatch(loaded), engine, starter, output, environ, further=further, grace_s=grace_s
                )
                page = StatusPage(supervisor.status)
                if follows_parent():
                    _end_with_parent(supervisor)
                try:
                    await supervisor.listen()
                    await _tell_where(supervisor, page, loaded.config or Config(), output)
                    await supervisor.run()
                finally:
                    await page.close()
    finally:
        output.close()


def _end_with_parent(supervisor: Supervisor) -> None:
    """A child ends at once when its parent has gone: nobody is left to wait for."""
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(sys.stdin.fileno())
        supervisor.tell()
        supervisor.tell()

    loop.add_reader(sys.stdin.fileno(), gone)


async def _tell_where(supervisor: Supervisor, page: StatusPage, config: Config, output: Output) -> None:
    """Print the addresses as one line of JSON."""
    status = supervisor.status()
    places = {"url": status.url, "metrics_url": status.metrics_url}
    wanted = config.server.status_port
    port = wanted if wanted is not None else config.server.port + 1
    try:
        places["status_url"] = f"http://127.0.0.1:{await page.listen(port)}/supervisor"
    except (OSError, OverflowError) as error:
        words = f"the status cannot be told on 127.0.0.1:{port}: {error}"
        if wanted is not None:
            raise CannotRun(words) from error
        output.say(f"{words}; see [server] status_port")
    print(json.dumps(places), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pdtop.supervisor", description="run the router that config.toml names"
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--grace", type=float, default=GRACE_S, help="seconds for streams to end at a stop")
    parser.add_argument("further", nargs="*", metavar="-- FLAG", help="flags for smg or sglang-router")
    args = parser.parse_args(argv)
    return run(args.config, args.further, grace_s=args.grace)


if __name__ == "__main__":
    sys.exit(main())
