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

from pdtop.simulator.children import Children, FolderTaken, listening
from pdtop.simulator.engine import Site
from pdtop.simulator.scenarios import Plan, Scenario, plan
from pdtop.simulator.spec import WorkerSpec

#: Opens the console on a config.toml and returns its exit code when the operator leaves it.
OpenConsole = Callable[[Path], int]

_READY_S = 20.0
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
    """A demo cluster that serves."""

    directory: Path
    config: Path
    router: str
    metrics: str
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
                "router": self.router,
                "metrics": self.metrics,
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
    headless: bool = False,
    duration: float | None = None,
    directory: Path | None = None,
    open_console: OpenConsole | None = None,
) -> int:
    """The ``demo`` command: 0 when all went well, 1 when the cluster failed, else the console's code.

    ``rate`` is in requests per second (None: fitting to the pool). ``directory`` keeps config and logs;
    without it they are in a temporary folder that goes when the demo ends. After ``duration`` seconds it
    ends by itself.
    """
    try:
        with start(prefill, decode, rate, seed, scenario, directory) as (running, children):
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
) -> Iterator[tuple[Running, Children]]:
    """The cluster, up and serving, for as long as the context lasts. Raises :class:`DemoFailed`."""
    with ExitStack() as stack:
        stack.enter_context(_signals_as_exceptions())
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="pdtop-demo-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        else:
            directory.mkdir(parents=True, exist_ok=True)
        try:
            children = stack.enter_context(Children(directory))
        except FolderTaken:
            raise DemoFailed(f"another demo runs in {directory}; give each its own --dir") from None
        began = time.monotonic()
        _say(f"starting {prefill} prefill and {decode} decode workers, a router and a load ({scenario})")
        running = _launch(plan(scenario, prefill, decode, rate, seed), seed, scenario, directory, children)
        _wait_ready(running, children)
        _say(
            f"ready after {time.monotonic() - began:.1f} s: router {running.router}, config {running.config}"
        )
        yield running, children


def _launch(wanted: Plan, seed: int, scenario: Scenario, directory: Path, children: Children) -> Running:
    router, metrics, truth = listening(), listening(), listening()
    workers: list[Place] = []
    groups: dict[str, list[tuple[WorkerSpec, list[socket.socket]]]] = {}
    for pool in (wanted.prefill, wanted.decode):
        for index, spec in enumerate(pool):
            alone = spec.role == "decode" and index == wanted.victim
            opened, place, sockets = _open_sockets(spec)
            workers.append(place)
            groups.setdefault(f"{spec.role}-{index}" if alone else spec.role, []).append((opened, sockets))
    config = directory / "config.toml"
    config.write_text(config_text(wanted, workers, _url(router), f"{_url(metrics)}/metrics"), "utf-8")
    for name, members in groups.items():
        args = [arg for spec, _ in members for arg in ("--spec", spec.to_json())]
        children.start(name, "pdtop.simulator.worker", args, [s for _, taken in members for s in taken])
    running = Running(
        directory=directory,
        config=config,
        router=_url(router),
        metrics=f"{_url(metrics)}/metrics",
        truth=f"{_url(truth)}/truth",
        workers=tuple(workers),
        scenario=scenario,
        pids={},
    )
    fds = ["--fd", str(router.fileno()), "--metrics-fd", str(metrics.fileno())]
    children.start("router", "pdtop.gateway", [str(config), *fds, "--seed", str(seed)], [router, metrics])
    load = ["--url", running.router, "--seed", str(seed), "--truth-fd", str(truth.fileno())]
    load += ["--traffic", json.dumps(asdict(wanted.traffic))]
    children.start("load", "pdtop.simulator.load", load, [truth])
    return replace(running, pids=children.pids())


def _open_sockets(spec: WorkerSpec) -> tuple[WorkerSpec, Place, list[socket.socket]]:
    sock = listening()
    site = spec.prefill.site if spec.role == "prefill" else spec.decode.site
    if spec.role == "decode":
        return replace(spec, fd=sock.fileno()), Place("decode", _url(sock), None, site), [sock]
    bootstrap = listening()
    opened = replace(spec, fd=sock.fileno(), bootstrap_fd=bootstrap.fileno())
    place = Place("prefill", _url(sock), int(bootstrap.getsockname()[1]), site)
    return opened, place, [sock, bootstrap]


def config_text(wanted: Plan, workers: list[Place], router: str, metrics: str) -> str:
    """The config.toml of a demo cluster."""
    host, _, port = router.removeprefix("http://").rpartition(":")
    lines = [
        "# A demo cluster on this machine; it lives as long as `pdtop demo` does.",
        "# Change what you like while it runs: the router follows this file.",
        "[server]",
        f'host = "{host}"',
        f"port = {port}",
        'engine = "embedded"',
        f'url = "{router}"',
        f'metrics_url = "{metrics}"',
        f'default_model_id = "{wanted.prefill[0].model_name if wanted.prefill else ""}"',
    ]
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
