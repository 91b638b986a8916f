"""Find what an operator means: a worker by any of its spellings, its places in config.toml, a key of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pdtop.cluster.address import Address, AddressError
from pdtop.cluster.model import Role, Snapshot, Worker
from pdtop.cluster.words import clean
from pdtop.config.checks import POOL_NAMES, PoolName
from pdtop.config.problems import nearest
from pdtop.config.schema import Config, WorkerTable, node_key
from pdtop.operations.model import Guard
from pdtop.routers.spec import WorkerSpec

#: Names that a message lists at most.
LISTED = 8
_BOUNDARIES = frozenset(".:-_/[")


@dataclass(frozen=True, slots=True)
class Found:
    """Workers that were meant, in the order given, each once; and what nobody is called."""

    workers: tuple[Worker, ...]
    guards: tuple[Guard, ...] = ()


def find_workers(texts: Iterable[str], snapshot: Snapshot) -> Found:
    """Each text is a key, a name, an address in any spelling, or the end of one that only one worker has."""
    found: dict[str, Worker] = {}
    guards: list[Guard] = []
    for text in texts:
        one = find_worker(text, snapshot.workers)
        if isinstance(one, Guard):
            guards.append(one)
        else:
            found.setdefault(one.key, one)
    return Found(tuple(found.values()), tuple(guards))


def find_worker(text: str, workers: Sequence[Worker]) -> Worker | Guard:
    """The one worker that ``text`` means, else why there is none, with the nearest name."""
    wanted = text.strip()
    key = key_of(wanted)
    for worker in workers:
        if wanted in (worker.key, worker.name):
            return worker
    for worker in workers:
        if worker.key == key:
            return worker
    for matches in (_ends_at_boundary, _ends):
        fitting = [w for w in workers if wanted and matches(wanted.lower(), w)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            return Guard(
                "unknown_worker",
                f"'{clean(wanted)}' fits {len(fitting)} workers: {names(fitting)}",
                "write more of the name",
            )
    return unknown_worker(wanted, workers)


def unknown_worker(text: str, workers: Sequence[Worker]) -> Guard:
    """Nobody is called so: with the nearest name and the list."""
    near = nearest(text, [name for worker in workers for name in (worker.name, worker.key)])
    hint = f"did you mean {clean(near)}? " if near is not None else ""
    return Guard(
        "unknown_worker",
        f"there is no worker '{clean(text)}'" if text else "no worker is named",
        hint + (f"workers: {names(workers)}" if workers else "no worker is watched"),
    )


def names(workers: Sequence[Worker]) -> str:
    """``a, b and 3 more``."""
    shown = ", ".join(clean(worker.name) for worker in workers[:LISTED])
    return shown if len(workers) <= LISTED else f"{shown} and {len(workers) - LISTED} more"


def _spellings(worker: Worker) -> Iterable[str]:
    """What may be cut off at the front: name and key, each also without its port."""
    for text in (worker.name.lower(), worker.key.lower()):
        yield text
        host, colon, port = text.rpartition(":")
        if colon and port.isdigit():
            yield host


def _ends_at_boundary(wanted: str, worker: Worker) -> bool:
    return any(
        text.endswith(wanted) and (wanted[0] in _BOUNDARIES or text[-len(wanted) - 1] in _BOUNDARIES)
        for text in _spellings(worker)
        if len(text) > len(wanted)
    )


def _ends(wanted: str, worker: Worker) -> bool:
    return any(text.endswith(wanted) for text in _spellings(worker))


@lru_cache(4096)  # one plan asks for the key of every worker some ten times
def key_of(address: str) -> str | None:
    """Canonical key of an address; None if it is none."""
    try:
        return Address.parse(address).key
    except AddressError:
        return None


# A worker in config.toml.


@dataclass(frozen=True, slots=True)
class Place:
    """One line for a worker in ``[<pool>] workers``. ``table``: the name of its own table, if it has one."""

    pool: PoolName
    written: str
    settings: WorkerTable
    table: str | None = None

    @property
    def role(self) -> Role:
        return Role(self.pool)

    @property
    def path(self) -> tuple[str, ...]:
        """Of its own table: as written, else as in the array."""
        return (self.pool, "worker", self.written if self.table is None else self.table)


def places(config: Config, key: str) -> tuple[Place, ...]:
    """Where the file lists the worker: once, as a rule; more often if its ranks are listed apart."""
    return tuple(place for place in all_places(config) if key_of(place.written) == key)


def all_places(config: Config) -> Iterable[Place]:
    """Every listed worker, with what the file says of it."""
    for name in POOL_NAMES:
        pool = config.pool(name)
        tables = {node_key(written): written for written in reversed(pool.worker)}
        for written in pool.workers:
            table = tables.get(node_key(written))
            settings = WorkerTable() if table is None else pool.worker[table]
            yield Place(name, written, settings, table)


def bootstrap_port(
    key: str, snapshot: Snapshot, config: Config, remembered: Mapping[str, WorkerSpec]
) -> tuple[int, str] | None:
    """A prefill worker's bootstrap port and who says so; None if nobody does.

    ``remembered``: by key, what routers knew of workers when they were taken out.
    """
    for place in places(config, key):
        if place.settings.bootstrap_port is not None:
            return place.settings.bootstrap_port, "config.toml"
    spec, worker = remembered.get(key), snapshot.worker(key)
    if spec is not None and spec.bootstrap_port is not None:
        return spec.bootstrap_port, "as it was when it was taken out"
    for opinion in worker.opinions if worker is not None else ():
        if opinion.bootstrap_port is not None:
            return opinion.bootstrap_port, f"as {clean(opinion.router)} lists it"
    if worker is not None and worker.identity.bootstrap_port is not None:
        return worker.identity.bootstrap_port, "as the worker says"
    return None
