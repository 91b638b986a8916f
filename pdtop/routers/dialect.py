"""What a router dialect is: which paths to read and how to read them. One module beside this for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pdtop.cluster.model import Breaker, Health, Role
from pdtop.cluster.readings import ListedWorker
from pdtop.routers.values import json_of, number_of, text_of, whole_of

MAX_WORKERS = 10_000
METRICS_PORT = 29000  # --prometheus-port of sglang-router and smg

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "regular": Role.UNIFIED}
_STATUS = {
    "ready": Health.HEALTHY,
    "not_ready": Health.UNHEALTHY,
    "failed": Health.UNHEALTHY,
    "pending": Health.PENDING,
    "draining": Health.DRAINING,
}
_BREAKERS = {"closed": Breaker.CLOSED, "open": Breaker.OPEN, "half_open": Breaker.HALF_OPEN}

WorkerList = tuple[ListedWorker, ...]
LoadsByUrl = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Readiness:
    """A router's own word on whether it can serve. ``ready`` None: it does not say."""

    ready: bool | None
    reason: str = ""


def read_workers(body: bytes) -> WorkerList | None:
    """A worker list in any dialect's form; None if it is none.

    ``{"workers": [{"url", ...}]}`` (sglang-router, smg, pdtop); ``{"urls": [...]}`` and
    ``{"workers": ["url"]}`` (older ones). Entries without an address are left out.
    """
    entries = read_entries(body)
    if entries is None:
        return None
    return tuple(worker for worker in map(listed_worker, entries) if worker is not None)


def read_entries(body: bytes) -> list[object] | None:
    """The entries of a worker list as they came; None if it is no worker list."""
    top = json_of(body)
    entries = top.get("workers", top.get("urls")) if isinstance(top, dict) else None
    return entries[:MAX_WORKERS] if isinstance(entries, list) else None


def read_loads(body: bytes) -> LoadsByUrl | None:
    """``/get_loads``: load by worker URL, None where it is unknown to the router; None if it is no such list.

    sglang-router: ``{"workers": [{"worker", "load"}]}`` with -1 for "could not fetch". smg: entries by rank
    with request counts; its load here is running plus waiting requests, ranks added.
    """
    top = json_of(body)
    if not isinstance(top, dict):
        return None
    entries = top.get("workers", top.get("loads"))
    if not isinstance(entries, list):
        return None
    loads: LoadsByUrl = {}
    for entry in entries[:MAX_WORKERS]:
        url = text_of(entry.get("worker")) if isinstance(entry, dict) else None
        if url is None:
            continue
        load = number_of(entry.get("load"))
        if "load" not in entry:
            parts = [number_of(entry.get(name)) for name in ("num_running_reqs", "num_waiting_reqs")]
            load = None if None in parts else sum(part for part in parts if part is not None)
        before = loads.get(url, 0.0)
        loads[url] = None if load is None or before is None else before + load
    return loads


def read_version(body: bytes) -> tuple[str, str] | None:
    """Name and release out of ``/get_loads``: ``"version": "smg-1.13.0"``. None where it tells none."""
    top = json_of(body)
    text = text_of(top.get("version"), 40) if isinstance(top, dict) else None
    name, dash, release = (text or "").partition("-")
    return (name, release) if dash and name in ("smg", "pdtop") else None


def read_readiness(status: int | None, body: bytes) -> Readiness:
    """``/readiness``: 200 or 503 with ``status`` and maybe ``reason``."""
    top = json_of(body)
    reason = text_of(top.get("reason")) if isinstance(top, dict) else None
    if status == 200:
        return Readiness(True)
    if status == 503:
        return Readiness(False, reason or "not ready")
    return Readiness(None)


@dataclass(frozen=True, slots=True)
class Powers:
    """What can be changed at one kind of router while it runs.

    ``drain_by``: what keeps new work from a worker: taking it out by the router's API (``removal``), the
    router's own reading of config.toml (``file``), or nothing. ``settle_s``: a removed worker stays listed
    as draining for this long, and the removal that ends it goes by URL. ``hidden_fields`` can be changed
    but are not shown by ``GET /workers``. ``thresholds``: when a new one counts; ``none`` = never.
    """

    drain_by: Literal["removal", "file", "none"] = "none"
    settle_s: float = 0.0
    live_health: bool = False
    weights: bool = False
    reads_file: bool = False
    thresholds: Literal["live", "restart", "none"] = "none"
    power_of_two_needs_two: bool = False  # it refuses to start with fewer workers in such a pool
    update_method: Literal["PATCH", "PUT"] | None = None  # for a partial change of one worker
    hidden_fields: frozenset[str] = frozenset()
    update_zeroes_load: bool = False  # any change of a worker makes the router forget its running requests


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to read one kind of router.

    ``loads_every_s`` is the least time between two reads of ``loads_path`` (None: never read). ``limits``
    says in words what this router is known to report wrongly or cannot do.
    """

    engine: str
    list_paths: tuple[str, ...] = ("/workers",)
    ready_path: str | None = "/readiness"
    loads_path: str | None = None
    loads_every_s: float | None = None
    metrics_port: int | None = METRICS_PORT
    limits: tuple[str, ...] = ()
    powers: Powers = Powers()
    workers: Callable[[bytes], WorkerList | None] = read_workers
    loads: Callable[[bytes], LoadsByUrl | None] = read_loads
    readiness: Callable[[int | None, bytes], Readiness] = read_readiness

    @property
    def control(self) -> bool:
        """True if workers can be changed through this router at all."""
        return self.powers.update_method is not None


def listed_worker(entry: object) -> ListedWorker | None:
    """One entry of a worker list; None without an address."""
    url = address_of(entry)
    if url is None:
        return None
    entry = entry if isinstance(entry, dict) else {}
    labels = entry.get("labels", entry.get("metadata"))
    model = text_of(entry.get("model_id"))
    return ListedWorker(
        worker_id=text_of(entry.get("id")) or "",
        url=url,
        role=_ROLES.get(str(entry.get("worker_type")), Role.UNKNOWN),
        health=_health(entry),
        load=number_of(entry.get("load")),
        bootstrap_port=whole_of(entry.get("bootstrap_port")),
        model=None if model == "unknown" else model,
        breaker=_BREAKERS.get(str(entry.get("breaker", entry.get("circuit_breaker")))),
        weight=number_of(entry.get("weight")),
        labels=_labels(labels.items()) if isinstance(labels, dict) else {},
    )


def address_of(entry: object) -> str | None:
    """The address in one entry of a worker list."""
    return text_of(entry.get("url") if isinstance(entry, dict) else entry)


def _health(entry: Mapping[str, object]) -> Health | None:
    status = _STATUS.get(str(entry.get("status")))
    if status is not None:
        return status
    healthy = entry.get("is_healthy")
    if not isinstance(healthy, bool):
        return None
    return Health.HEALTHY if healthy else Health.UNHEALTHY


def _labels(items: Iterable[tuple[str, object]]) -> dict[str, str]:
    """Short texts only, at most 64, and none whose name speaks of a secret."""
    found: dict[str, str] = {}
    for name, value in items:
        text = text_of(value, 120)
        if text is None or len(found) >= 64 or name.lower().endswith(_SECRET_WORDS):
            continue
        found[text_of(name, 60) or ""] = text
    return found


_SECRET_WORDS = ("key", "token", "secret", "password")
