"""From the words of a command line to what is to be watched, and to a running monitor."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_config_path

from pdtop import __version__
from pdtop.cluster.address import AddressError
from pdtop.cluster.model import Health
from pdtop.cluster.targets import Targets, from_config, from_lists, from_router
from pdtop.config.commands import FoundAt, FoundWorker, report
from pdtop.config.load import Loaded, load

if TYPE_CHECKING:
    from pdtop.cluster.model import Snapshot, Worker
    from pdtop.cluster.monitor import Monitor
    from pdtop.config.schema import Config

#: Beyond a request's own limit, this much is given to the first round.
FIRST_LOOK_S = 2.0

GUIDE = """nothing to watch: no TARGET was given and no config.toml was found
  pdtop demo                        try it on a simulated cluster
  pdtop http://router:30000         watch what stands behind a router
  pdtop --prefill P... --decode D... watch workers without a router
  pdtop config init                 write a config.toml to start from"""


class LaunchError(ValueError):
    """What was asked for cannot be started; the message says why and what to do."""


class NothingNamed(LaunchError):
    """Neither a target nor a config.toml."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What to watch; ``loaded`` is the config file behind it, None without one."""

    targets: Targets
    loaded: Loaded | None = None

    @property
    def config(self) -> Config | None:
        return self.loaded.config if self.loaded else None

    @property
    def path(self) -> Path | None:
        """The config file; None without one."""
        return self.loaded.path if self.loaded else None


def find(
    targets: Sequence[str],
    prefill: Sequence[str],
    decode: Sequence[str],
    metrics_url: str | None = None,
    ca_file: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Watched:
    """What the command line means: one config file, or routers and workers. Raises LaunchError.

    ``metrics_url`` is the first router's metrics page; ``ca_file`` wins over the file's.
    """
    watched = _find(targets, prefill, decode, metrics_url, environ)
    if ca_file is None:
        return watched
    settings = replace(watched.targets.settings, ca_file=ca_file)
    return replace(watched, targets=replace(watched.targets, settings=settings))


def _find(
    targets: Sequence[str],
    prefill: Sequence[str],
    decode: Sequence[str],
    metrics_url: str | None,
    environ: Mapping[str, str],
) -> Watched:
    files = [text for text in targets if names_file(text)]
    if files and (len(targets) > 1 or prefill or decode):
        raise LaunchError("a config file says all there is to watch: give it alone")
    if files:
        return watch_file(Path(files[0]))
    if not targets and not prefill and not decode:
        path = default_config(environ)
        if path is None:
            raise NothingNamed(GUIDE)
        return watch_file(path)
    try:
        if prefill or decode:
            merged = from_lists(
                prefill, decode, router_url=targets[0] if targets else None, metrics_url=metrics_url
            )
            others = [from_router(text) for text in targets[1:]]
        else:
            merged = from_router(targets[0], metrics_url=metrics_url)
            others = [from_router(text) for text in targets[1:]]
    except AddressError as error:
        raise LaunchError(str(error)) from error
    routers = (*merged.routers, *(router for other in others for router in other.routers))
    notices = (*merged.notices, *(notice for other in others for notice in other.notices))
    return Watched(replace(merged, routers=routers, notices=notices))


def watch_file(path: Path) -> Watched:
    """What a config file describes. Raises LaunchError with every problem of the file."""
    loaded = load(path)
    if loaded.config is None:
        raise LaunchError(report(loaded))
    return Watched(targets_of(loaded.config, path), loaded)


def targets_of(config: Config, path: Path) -> Targets:
    """Targets of a config that was read from ``path``."""
    return from_config(config, cluster=cluster_name(path), folder=path.absolute().parent)


def cluster_name(path: Path) -> str:
    """A cluster is called after its file, or after the folder of a ``config.toml``."""
    path = path.absolute()
    return path.stem if path.stem != "config" else path.parent.name or "cluster"


def default_config(environ: Mapping[str, str]) -> Path | None:
    """The file to use when none is named: $PDTOP_CONFIG, ./config.toml, the user's, the machine's."""
    if named := environ.get("PDTOP_CONFIG"):
        return Path(named)
    candidates = (
        Path("config.toml"),
        user_config(),
        Path("/etc/pdtop/config.toml"),
    )
    return next((path for path in candidates if path.is_file()), None)


def user_config() -> Path:
    """The user's own file, whether it is there or not: it counts where a cluster's file says nothing."""
    return user_config_path("pdtop") / "config.toml"


def start(watched: Watched, *, interval_s: float | None = None, window_s: float | None = None) -> Monitor:
    """A running monitor; the flags win over the file."""
    from pdtop.cluster.monitor import Monitor

    targets = watched.targets
    if interval_s is not None:
        targets = replace(targets, settings=replace(targets.settings, interval_s=interval_s))
    if window_s is None:
        window_s = watched.config.console.window_secs if watched.config else 30.0
    monitor = Monitor(targets, loaded=watched.loaded, window_s=window_s)
    monitor.start()
    return monitor


def first_look(monitor: Monitor) -> Snapshot:
    """The first snapshot in which everybody has answered or had the time to."""
    complete = threading.Event()
    leave = monitor.subscribe(lambda _: complete.set() if monitor.wait_first_round(0) else None)
    try:
        complete.wait(monitor.targets.settings.timeout_s + FIRST_LOOK_S)
    finally:
        leave()
    return monitor.latest()


def found_at(url: str) -> FoundAt:
    """What a router is and lists, for a file to start from. Raises LaunchError if it does not say."""
    watched = find([url], [], [])
    monitor = start(watched)
    try:
        snapshot = first_look(monitor)
    finally:
        monitor.stop()
    router = snapshot.routers[0]
    if router.workers is None:
        why = router.reason or "no list of workers was found there"
        raise LaunchError(f"{router.name} does not tell its workers: {why}")
    policies = {pool.role.value: pool.policy for pool in (snapshot.prefill, snapshot.decode) if pool.policy}
    workers = tuple(_found_worker(worker) for worker in snapshot.workers)
    return FoundAt(watched.targets.routers[0].address.base_url, router.engine, workers, policies)


def _found_worker(worker: Worker) -> FoundWorker:
    opinion = next(iter(worker.opinions), None)
    port = worker.identity.bootstrap_port
    if opinion is not None and opinion.bootstrap_port is not None:
        port = opinion.bootstrap_port
    scheme = "https://" if worker.name.startswith("https://") else ""
    draining = opinion is not None and opinion.health is Health.DRAINING
    return FoundWorker(scheme + worker.key, worker.role.value, port, draining)


def console_settings(
    config: Config | None, *, theme: str | None, mouse: bool, state_dir: Path
) -> dict[str, Any]:
    """Keyword arguments for the screen's options; flags win over ``[console]``."""
    settings: dict[str, Any] = {
        "themes_dir": user_config_path("pdtop") / "themes",
        "state_dir": state_dir,
        "theme": theme or "",
        "mouse": mouse,
    }
    if config is not None:
        console = config.console
        settings["theme"] = theme or console.theme or ""
        settings["mouse"] = mouse and console.mouse
        settings["keymap"] = config.key_bindings
        chosen = {"prefill": console.columns.prefill, "decode": console.columns.decode}
        settings["columns"] = {pool: tuple(columns) for pool, columns in chosen.items() if columns}
        levels = console.levels.model_dump()
        settings["levels"] = {name: (level["warn"], level["crit"]) for name, level in levels.items()}
    return settings


def about(state_dir: Path) -> Iterator[tuple[str, str]]:
    """Versions, paths and terminal as name and value. No keys: only whether a variable is set."""
    yield "pdtop", __version__
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    for package in ("textual", "rich", "aiohttp", "tomlkit", "watchfiles", "pydantic"):
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"
    yield "config", str(default_config(os.environ) or "none found")
    yield "themes", str(user_config_path("pdtop") / "themes")
    yield "state", str(state_dir)
    for variable in ("TERM", "COLORTERM", "NO_COLOR", "TMUX", "SSH_TTY", "LANG"):
        yield variable, os.environ.get(variable) or "not set"
    yield "terminal", "yes" if sys.stdin.isatty() and sys.stdout.isatty() else "no (the console needs one)"
    yield "PDTOP_API_KEY", "set" if os.environ.get("PDTOP_API_KEY") else "not set"


def names_file(text: str) -> bool:
    """Whether this word of the command line is a file, and no address."""
    return text.endswith(".toml") or ("://" not in text and Path(text).is_file())
