"""A whole cluster on this machine: simulated workers, the router and a load, as child processes.

``run`` starts it, waits until it serves, then opens the console on it or, headless, prints one JSON line
and waits. However it ends, nothing stays behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from pdtop.config.schema import Config
from pdtop.simulator.children import Children, FolderTaken, listening
from pdtop.simulator.engine import Site
from pdtop.simulator.scenarios import Plan, Scenario, later, plan
from pdtop.simulator.spec import WorkerSpec
from pdtop.supervisor.engines import ENGINES as PUBLISHED
from pdtop.supervisor.engines import CannotRun, interpreter

#: Opens the console on a config.toml and returns its exit code when the operator leaves it.
OpenConsole = Callable[[Path], int]

#: Routers that a demo may have in front.
ENGINES = ("embedded", *PUBLISHED)

_READY_S = 60.0  # smg and sglang-router need some seconds, more on a busy machine
_LATER_S = 8.0  # with them, a scenario's trouble begins so much later
_GRACE_S = 0.5  # whoever ends a demo does not wait for its streams
_LOOK_S = 0.25


class DemoFailed(Exception):
    """The cluster did not come up, or a part of it ended; the text says which and shows its last words."""


class _Told(Exception):
    """A signal asked for the end."""


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's address."""

    role: str
    url: str
    bootstrap_port: int | None
    site: Site

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


@dataclass(frozen=True, slots=True)
class Running:
    """A demo cluster that serves. ``status``: what runs smg or sglang-router tells of it."""

    directory: Path
    config: Path
    engine: str
    router: str
    metrics: str
    status: str | None
    truth: str
    workers: tuple[Place, ...]
    scenario: Scenario
    pids: dict[str, int]

    def as_json(self) -> str:
        """The one line that ``--headless`` prints."""
        return json.dumps(
            {
                "config": str(self.config),
                "dir": str(self.directory),
                "engine": self.engine,
                "router": self.router,
                "metrics": self.metrics,
                "status": self.status,
                "truth": self.truth,
                "workers": [asdict(w) for w in self.workers],
                "scenario": self.scenario,
                "pids": self.pids,
            }
        )


def run(
    *,
    prefill: int = 3,
    decode: int = 4,
    rate: float | None = None,
    seed: int = 0,
    scenario: Scenario = "steady",
    engine: str = "embedded",
    headless: bool = False,
    duration: float | None = None,
    directory: Path | None = None,
    open_console: OpenConsole | None = None,
) -> int:
    """The ``demo`` command: 0 when all went well, 1 when the cluster failed, else the console's code.

    ``rate`` is in requests per second (None: fitting to the pool). ``engine`` is one of :data:`ENGINES`.
    ``directory`` keeps config and logs; without it they are in a temporary folder that goes when the demo
    ends. After ``duration`` seconds it ends by itself.
    """
    try:
        with start(prefill, decode, rate, seed, scenario, directory, engine) as (running, children):
            if headless or open_console is None:
                print(running.as_json(), flush=True)
                _wait(children, running.scenario, duration)
                return 0
            with _terminated_after(duration):
                return open_console(running.config)
    except (_Told, KeyboardInterrupt):
        return 0
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1


@contextmanager
def start(
    prefill: int,
    decode: int,
    rate: float | None,
    seed: int,
    scenario: Scenario,
    directory: Path | None = None,
    engine: str = "embedded",
) -> Iterator[tuple[Running, Children]]:
    """The cluster, up and serving, for as long as the context lasts. Raises :class:`DemoFailed`."""
    with ExitStack() as stack:
        stack.enter_context(_signals_as_exceptions())
        if directory is None:
            temporary = Path(tempfile.mkdtemp(prefix="pdtop-demo-"))
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            directory = temporary / "demo"  # the cluster is called after its folder
        directory.mkdir(parents=True, exist_ok=True)
        try:
            children = stack.enter_context(Children(directory))
        except FolderTaken:
            raise DemoFailed(f"another demo runs in {directory}; give each its own --dir") from None
        began = time.monotonic()
        router = "a router" if engine == "embedded" else engine
        _say(f"starting {prefill} prefill and {decode} decode workers, {router} and a load ({scenario})")
        wanted = plan(scenario, prefill, decode, rate, seed)
        truth = stack.enter_context(listening())
        running = _launch(wanted, seed, scenario, directory, engine, children, truth)
        _say(
            f"ready after {time.monotonic() - began:.1f} s: router {running.router}, config {running.config}"
        )
        yield running, children


def _launch(
    wanted: Plan,
    seed: int,
    scenario: Scenario,
    directory: Path,
    engine: str,
    children: Children,
    truth: socket.socket,
) -> Running:
    """``truth``: where the load says what users saw."""
    python = _interpreter(engine)
    embedded = python is None
    if not embedded:
        wanted = later(wanted, _LATER_S)
    router, metrics, status = listening(), listening(), listening()
    workers: list[Place] = []
    groups: dict[str, list[tuple[WorkerSpec, list[socket.socket]]]] = {}
    for pool in (wanted.prefill, wanted.decode):
        for index, spec in enumerate(pool):
            alone = spec.role == "decode" and index == wanted.victim
            opened, place, sockets = _open_sockets(spec)
            workers.append(place)
            groups.setdefault(f"{spec.role}-{index}" if alone else spec.role, []).append((opened, sockets))
    running = Running(
        directory=directory,
        config=directory / "config.toml",
        engine=engine,
        router=_url(router),
        metrics=f"{_url(metrics)}/metrics",
        status=None if embedded else f"{_url(status)}/supervisor",
        truth=f"{_url(truth)}/truth",
        workers=tuple(workers),
        scenario=scenario,
        pids={},
    )
    running.config.write_text(config_text(wanted, running, python), "utf-8")
    for name, members in groups.items():
        args = [arg for spec, _ in members for arg in ("--spec", spec.to_json())]
        children.start(name, "pdtop.simulator.worker", args, [s for _, taken in members for s in taken])
    if embedded:
        status.close()
        fds = ["--fd", str(router.fileno()), "--metrics-fd", str(metrics.fileno()), "--seed", str(seed)]
        children.start("router", "pdtop.gateway", [str(running.config), *fds], [router, metrics])
    else:
        for sock in (router, metrics, status):  # what runs the engine listens by itself, as in production
            sock.close()
        children.start("router", "pdtop.supervisor", [str(running.config), "--grace", str(_GRACE_S)])
    _wait_ready(running, children)
    load = ["--url", running.router, "--seed", str(seed), "--truth-fd", str(truth.fileno())]
    load += ["--traffic", json.dumps(asdict(wanted.traffic))]
    children.start("load", "pdtop.simulator.load", load, [truth])
    return replace(running, pids=children.pids())


def _interpreter(engine: str) -> str | None:
    """Who has the engine; None for pdtop's own router. Raises :class:`DemoFailed` if nobody has it."""
    published = PUBLISHED.get(engine)
    try:
        return interpreter(Config(), published, os.environ) if published is not None else None
    except CannotRun as reason:
        raise DemoFailed(str(reason)) from reason


def _open_sockets(spec: WorkerSpec) -> tuple[WorkerSpec, Place, list[socket.socket]]:
    sock = listening()
    site = spec.prefill.site if spec.role == "prefill" else spec.decode.site
    if spec.role == "decode":
        return replace(spec, fd=sock.fileno()), Place("decode", _url(sock), None, site), [sock]
    bootstrap = listening()
    opened = replace(spec, fd=sock.fileno(), bootstrap_fd=bootstrap.fileno())
    place = Place("prefill", _url(sock), int(bootstrap.getsockname()[1]), site)
    return opened, place, [sock, bootstrap]


def config_text(wanted: Plan, running: Running, python: str | None = None) -> str:
    """The config.toml of a demo cluster. ``python``: the interpreter that has its engine."""
    workers = running.workers
    host, _, port = running.router.removeprefix("http://").rpartition(":")
    follows = (
        "# Change what you like while it runs: the router follows this file."
        if running.status is None
        else f"# Change what you like; what becomes of it: pdtop config check FILE --engine {running.engine}"
    )
    lines = [
        "# A demo cluster on this machine; it lives as long as `pdtop demo` does.",
        follows,
        "[server]",
        f'host = "{host}"',
        f"port = {port}",
        f'engine = "{running.engine}"',
        f'url = "{running.router}"',
        f'metrics_url = "{running.metrics}"',
        'api_key_env = "PDTOP_DEMO_KEY"    # keys of real clusters are not for this one',
        'admin_key_env = "PDTOP_DEMO_KEY"',
        f'default_model_id = "{wanted.prefill[0].model_name if wanted.prefill else ""}"',
    ]
    if running.status is not None:
        lines.append(f"status_port = {urlsplit(running.status).port}")
    if python not in (None, sys.executable):
        lines.append(f"engine_python = {json.dumps(python)}")
    for role, policy in (("prefill", wanted.prefill_policy), ("decode", wanted.decode_policy)):
        members = [w for w in workers if w.role == role]
        lines += ["", f"[{role}]", "workers = ["]
        lines += [f'    "{w.address}",' for w in members]
        lines += ["]", f'policy = "{policy}"']
        if role == "prefill":
            lines += [
                "# Up to this spread of load the longest cached prefix wins,",
                "# beyond the second one only load counts.",
                f"cache_aware_threshold = {wanted.cache_aware_threshold}",
                f"load_balance_threshold = {wanted.load_balance_threshold}",
            ]
        for w in members:
            lines += ["", f'[{role}.worker."{w.address}"]']
            lines += [f'host = "{w.site.host}"', f'rack = "{w.site.rack}"']
            if w.bootstrap_port is not None:
                lines.append(f"bootstrap_port = {w.bootstrap_port}")
    lines += [
        "",
        "[health]",
        "interval_secs = 3",
        "timeout_secs = 3",
        "unhealthy_threshold = 3",
        "",
        "[load]",
        "# The prefix counts no longer with so much more load than twice the mean of the others.",
        f"affinity_guard = {wanted.affinity_guard}",
        "",
        "[slo]",
        "ttft_p99_ms = 1500",
        "tpot_p99_ms = 60",
        "",
    ]
    return "\n".join(lines)


def _wait_ready(running: Running, children: Children) -> None:
    """The sockets listen already, so a request waits until its server has come up."""
    deadline = time.monotonic() + _READY_S
    urls = [f"{w.url}/ready" for w in running.workers] + [f"{running.router}/readiness"]
    for url in urls:
        while not _answers(url):
            _raise_if_ended(children, None)
            if time.monotonic() > deadline:
                raise DemoFailed(f"{url} did not answer within {_READY_S:.0f} s; logs in {running.directory}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own loopback URL
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _wait(children: Children, scenario: Scenario, duration: float | None) -> None:
    end = None if duration is None else time.monotonic() + duration
    while end is None or time.monotonic() < end:
        _raise_if_ended(children, scenario)
        left = _LOOK_S if end is None else min(_LOOK_S, max(0.0, end - time.monotonic()))
        time.sleep(left)


def _raise_if_ended(children: Children, scenario: Scenario | None) -> None:
    for name, code in children.ended().items():
        if scenario == "dead-worker" and name.startswith("decode-"):
            continue
        raise DemoFailed(f"{name} ended with code {code}: {children.log(name)[-600:].strip()}")


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as Ctrl+C does, so that the children are stopped."""

    def told(number: int, frame: FrameType | None) -> None:
        raise _Told

    before = {s: signal.signal(s, told) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _terminated_after(seconds: float | None) -> Iterator[None]:
    """The console ends by a signal as if somebody had sent it: it knows how to leave the terminal."""
    timer = threading.Timer(seconds or 0.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{host}:{port}"


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)
