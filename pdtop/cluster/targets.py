"""What to watch, from config.toml, a router's address or two lists of workers, merged by canonical key.

Everything here is pure. A worker that is written twice in whatever spelling is one target; DP ranks that a
router lists apart (``http://host:port@0``, ``@1``) are one target with ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.http import MAX_BODY_BYTES, BearerKey, KeyRefusedError
from pdtop.cluster.model import Role
from pdtop.cluster.readings import ListedWorker
from pdtop.config.schema import Config, Pool, Server

ROUTER_PORT = 30000  # default of sglang-router and smg


@dataclass(frozen=True, slots=True)
class WorkerTarget:
    """One worker to watch. ``key`` is canonical and stays; ``aliases`` are keys of the same worker.

    ``metrics`` is where its metrics are read if not at the address itself. ``ranks`` are the DP ranks that
    addresses named ("0", "1"), empty if none did. ``source``: ``config``, ``arguments`` or ``router``.
    ``key_variable``: the variable with this worker's own key ("": it has none, the common one counts).
    """

    key: str
    name: str
    role: Role
    address: Address
    source: str
    weight: float = 1.0
    draining: bool = False  # the config says so
    metrics: Address | None = None
    ranks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    key_variable: str = ""
    own_key: BearerKey | None = None

    def bearer(self, settings: PollSettings) -> BearerKey | None:
        """The key to ask it with. Without its own one nothing is sent: the common key is not for it."""
        return self.own_key if self.key_variable else settings.key

    def is_called(self, key: str) -> bool:
        return key == self.key or key in self.aliases


@dataclass(frozen=True, slots=True)
class RouterTarget:
    """One router replica. ``metrics`` None: to be found. ``engine`` None: to be found out."""

    name: str
    address: Address
    metrics: Address | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How to ask; seconds and bytes. Keys are secrets and print as their variables' names."""

    interval_s: float = 2.0
    loads_interval_s: float = 1.0
    health_interval_s: float = 5.0
    timeout_s: float = 2.0
    health_timeout_s: float = 20.0
    max_body_bytes: int = MAX_BODY_BYTES
    ca_file: Path | None = None
    connect_to: Mapping[str, str] = field(default_factory=dict)
    key: BearerKey | None = None
    admin_key: BearerKey | None = None  # for a router's worker list, if it has two keys
    key_variable: str = "PDTOP_API_KEY"  # where the keys come from, for hints
    admin_key_variable: str = "PDTOP_ADMIN_KEY"


@dataclass(frozen=True, slots=True)
class Targets:
    """The whole of what to watch. ``notices`` say what was odd about the input."""

    cluster: str
    routers: tuple[RouterTarget, ...] = ()
    workers: tuple[WorkerTarget, ...] = ()
    settings: PollSettings = PollSettings()
    notices: tuple[str, ...] = ()


def from_config(
    config: Config, *, cluster: str, folder: Path, environ: Mapping[str, str] | None = None
) -> Targets:
    """Targets of a config file. Relative paths in it are taken from ``folder``."""
    notices: list[str] = []
    settings = _settings(config, folder, environ, notices)
    routers = _routers(config.server, notices)
    workers = [
        *_pool(config.prefill, Role.PREFILL, environ, notices),
        *_pool(config.decode, Role.DECODE, environ, notices),
    ]
    return Targets(cluster, routers, _folded(workers, notices), settings, tuple(notices))


def from_router(
    url: str, *, metrics_url: str | None = None, environ: Mapping[str, str] | None = None
) -> Targets:
    """Targets of ``pdtop http://router:30000``: the workers come from the router. Raises AddressError."""
    router = _router(url, metrics_url, None)
    notices = [router.address.warning] if router.address.warning else []
    settings = _settings(Config(), Path(), environ, notices)
    return Targets(router.name, (router,), (), settings, tuple(notices))


def from_lists(
    prefill: Iterable[str],
    decode: Iterable[str],
    *,
    router_url: str | None = None,
    metrics_url: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Targets:
    """Targets of ``pdtop --prefill URL... --decode URL...``. Raises AddressError."""
    notices: list[str] = []
    settings = _settings(Config(), Path(), environ, notices)
    routers = (_router(router_url, metrics_url, None),) if router_url else ()
    workers = [
        WorkerTarget(
            address.key,
            address.shown_as,
            role,
            replace(address, rank=None),
            "arguments",
            ranks=_ranks(address),
        )
        for role, texts in ((Role.PREFILL, prefill), (Role.DECODE, decode))
        for address in map(Address.parse, texts)
    ]
    notices += [worker.address.warning for worker in workers if worker.address.warning]
    return Targets("cluster", routers, _folded(workers, notices), settings, tuple(notices))


@dataclass(frozen=True, slots=True)
class Combined:
    """The workers to watch now, configured ones first, and what was odd."""

    workers: tuple[WorkerTarget, ...]
    notices: tuple[str, ...]


def combine(
    targets: Targets,
    lists: Mapping[str, Sequence[ListedWorker]],
    same: Mapping[str, str] | None = None,
) -> Combined:
    """Configured workers and those that the routers list (by router name).

    A configured worker stays whatever the routers say, with its configured role; a worker that only routers
    list is watched while one of them lists it. ``same``: keys known to be another key's worker.
    """
    notices: list[str] = []
    found = list(targets.workers)
    routers = {router.name: router.address for router in targets.routers}
    for name, listed in lists.items():
        unread = 0
        for entry in listed:
            address = listed_address(entry.url, routers.get(name))
            if address is None:
                unread += 1
                continue
            found.append(
                WorkerTarget(
                    address.key,
                    address.shown_as,
                    entry.role,
                    replace(address, rank=None),
                    "router",
                    ranks=_ranks(address),
                )
            )
        if unread:
            some = "a worker" if unread == 1 else f"{unread} workers"
            notices.append(f"{name} lists {some} whose address cannot be read")
    workers = _folded(found, notices, same or {})
    return Combined(workers, tuple(dict.fromkeys(notices)))  # each thing once, however often it is listed


def listed_address(url: str, router: Address | None) -> Address | None:
    """The address of a worker as a router lists it; None if it cannot be read.

    A loopback address means the *router's* machine: if the router was reached over the network, its host
    stands in for it.
    """
    try:
        address = Address.parse(url)
    except AddressError:
        return None
    if router is not None and address.is_loopback and not router.is_loopback:
        return replace(address, host=router.host, warning="")
    return address


def _settings(
    config: Config, folder: Path, environ: Mapping[str, str] | None, notices: list[str]
) -> PollSettings:
    server, console = config.server, config.console
    return PollSettings(
        interval_s=console.interval_secs,
        loads_interval_s=console.loads_interval_secs,
        health_interval_s=console.health_interval_secs,
        timeout_s=console.timeout_secs,
        health_timeout_s=console.health_timeout_secs,
        max_body_bytes=int(console.max_body_mib * 2**20),
        ca_file=folder / Path(server.ca_file).expanduser() if server.ca_file else None,
        connect_to=_connect_to(console.connect_to, notices),
        key=_key(server.api_key_env, environ, notices),
        admin_key=_key(server.admin_key_env, environ, notices),
        key_variable=server.api_key_env,
        admin_key_variable=server.admin_key_env,
    )


def _connect_to(written: Mapping[str, str], notices: list[str]) -> dict[str, str]:
    """``host:port`` as it is dialled, to where to connect instead; what cannot be read is left out."""
    found: dict[str, str] = {}
    for place, instead in written.items():
        try:
            found[Address.parse(place).netloc] = Address.parse(instead).netloc
        except AddressError as error:
            notices.append(f"connect_to: {error}")
    return found


def _key(variable: str | None, environ: Mapping[str, str] | None, notices: list[str]) -> BearerKey | None:
    try:
        return BearerKey.from_env(variable, environ)
    except KeyRefusedError as error:
        notices.append(f"{error}; it is not sent")
        return None


def _routers(server: Server, notices: list[str]) -> tuple[RouterTarget, ...]:
    """The router of the file and its replicas, each once."""
    written = [(server.router_url, server.metrics_url)] if server.names_router else []
    written += [(url, None) for url in server.replica_urls]
    found: dict[str, RouterTarget] = {}
    for url, metrics_url in written:
        try:
            router = _router(url, metrics_url, server.engine)
        except AddressError as error:
            notices.append(f"router: {error}")
            continue
        if router.address.key in found:
            notices.append(f"router {router.name} stands in the file twice")
        found.setdefault(router.address.key, router)
    return tuple(found.values())


def _router(url: str, metrics_url: str | None, engine: str | None) -> RouterTarget:
    address = Address.parse(url, default_port=ROUTER_PORT)
    metrics = Address.parse(metrics_url) if metrics_url else None
    return RouterTarget(address.shown_as, address, metrics, None if engine == "external" else engine)


def _pool(
    pool: Pool, role: Role, environ: Mapping[str, str] | None, notices: list[str]
) -> list[WorkerTarget]:
    workers: list[WorkerTarget] = []
    for written in pool.workers:
        own = pool.settings_of(written)
        try:
            address = Address.parse(written)
            metrics = Address.parse(own.metrics_url) if own.metrics_url else None
        except AddressError as error:
            notices.append(f"{role.value} worker {error}")
            continue
        if address.warning:
            notices.append(f"{role.value} worker '{address.shown_as}': {address.warning}")
        workers.append(
            WorkerTarget(
                address.key,
                address.shown_as,
                role,
                replace(address, rank=None),
                "config",
                weight=own.weight,
                draining=own.drain,
                metrics=metrics,
                ranks=_ranks(address),
                key_variable=own.api_key_env or "",
                own_key=_key(own.api_key_env, environ, notices),
            )
        )
    return workers


def _ranks(address: Address) -> tuple[str, ...]:
    return () if address.rank is None else (address.rank,)


def _folded(
    workers: Iterable[WorkerTarget], notices: list[str], same: Mapping[str, str] | None = None
) -> tuple[WorkerTarget, ...]:
    """One target a key; the first one of a key decides, later ones add ranks and other names."""
    same = same or {}
    found: dict[str, WorkerTarget] = {}
    for worker in workers:
        key = same.get(worker.key, worker.key)
        first = found.get(key)
        if first is None:
            found[key] = worker if key == worker.key else replace(worker, key=key, aliases=(worker.key,))
            continue
        if worker.source != "router" and not worker.ranks:
            notices.append(f"{first.name} stands in the list twice, also as {worker.name}")
        elif Role.UNKNOWN not in (worker.role, first.role) and worker.role is not first.role:
            notices.append(f"{first.name}: {first.role.value} here, {worker.role.value} at the router")
        aliases = {*first.aliases, worker.key, *worker.aliases} - {key}
        ranks = {*first.ranks, *worker.ranks}
        found[key] = replace(
            first,
            role=worker.role if first.role is Role.UNKNOWN else first.role,
            aliases=tuple(sorted(aliases)),
            ranks=tuple(sorted(ranks, key=lambda rank: (len(rank), rank))),
        )
    return tuple(found.values())
