"""All that a router must be told of a worker to bring it back exactly, read from the router's own list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pdtop.cluster.address import Address
from pdtop.cluster.model import Health, Role
from pdtop.cluster.readings import ListedWorker
from pdtop.config.masking import secret_parts
from pdtop.routers.dialect import address_of, listed_worker, read_entries
from pdtop.routers.values import mapping_of, number_of, text_of, whole_of

#: Labels that sglang-router 0.3.2 and smg 1.13.0 read from the engine at registration. They are left out:
#: sent again, they would hide what the engine says by then (another release, another model).
ENGINE_LABELS = frozenset(
    {
        "architectures",
        "attn_dp_size",
        "context_length",
        "cost",
        "disaggregation_mode",
        "dp_size",
        "enable_dp_attention",
        "has_audio_understanding",
        "has_image_understanding",
        "is_embedding",
        "is_generation",
        "load_balance_method",
        "max_model_len",
        "max_running_requests",
        "max_total_tokens",
        "model_path",
        "model_type",
        "pp_size",
        "priority",
        "served_model_name",
        "tokenizer_path",
        "tp_size",
        "version",
        "weight_version",
    }
)
#: ``worker_type`` of a role; there is none for a role that is not known.
WORKER_TYPES = {Role.PREFILL: "prefill", Role.DECODE: "decode", Role.UNIFIED: "regular"}

_HEALTH_SECONDS_AND_COUNTS = (
    "timeout_secs",
    "check_interval_secs",
    "success_threshold",
    "failure_threshold",
    "drain_settle_secs",
)
_NO_CHECK = "disable_health_check"
_MAX_LABELS = 64
_MAX_LABEL = 1000
_MAX_PORT = 65535
_MAX_U32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker as a router is told of it; holds no secret.

    ``health`` has smg's names, in seconds and counts, and ``disable_health_check`` as 1. None and what is
    missing: the router's own default.
    """

    url: str
    role: Role
    bootstrap_port: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    cost: float | None = None
    health: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawWorker:
    """One entry of a router's list. ``spec`` is None where the router does not say enough to add it again."""

    listed: ListedWorker
    spec: WorkerSpec | None

    @property
    def url(self) -> str:
        return self.listed.url

    @property
    def worker_id(self) -> str:
        return self.listed.worker_id

    @property
    def draining(self) -> bool:
        """It gets no new work any more and leaves the list by itself."""
        return self.listed.health is Health.DRAINING

    @property
    def usable(self) -> bool:
        """Registered in a role, and healthy in the router's opinion."""
        return self.listed.health is Health.HEALTHY and self.listed.role is not Role.UNKNOWN


def read_raw(body: bytes, of: Callable[[str], bool] | None = None) -> tuple[RawWorker, ...] | None:
    """A worker list with specs; None if it is none, as one in which nothing has an address.

    ``of``: only workers whose address it takes.
    """
    entries = read_entries(body)
    if entries is None:
        return None
    urls = [address_of(entry) for entry in entries]
    if entries and not any(urls):
        return None
    wanted = (entry for entry, url in zip(entries, urls, strict=True) if url and (of is None or of(url)))
    return tuple(worker for worker in map(raw_worker, wanted) if worker is not None)


def raw_worker(entry: object) -> RawWorker | None:
    """One entry of a worker list, or the answer to ``/workers/{id}``; None without an address."""
    listed = listed_worker(entry)
    return None if listed is None else RawWorker(listed, spec_of(mapping_of(entry)))


def spec_of(entry: Mapping[str, object]) -> WorkerSpec | None:
    """From one entry of ``GET /workers``; None if it lacks the address or the role."""
    url = text_of(entry.get("url"), 400)
    role = next((role for role, word in WORKER_TYPES.items() if word == entry.get("worker_type")), None)
    if url is None or role is None:
        return None
    health = dict(mapping_of(entry.get("health")))
    if entry.get(_NO_CHECK) is True:
        health[_NO_CHECK] = True
    labels = {
        name: text
        for name, text in _labels(entry.get("labels", entry.get("metadata"))).items()
        if name not in ENGINE_LABELS
    }
    return _spec(url, role, labels, health, entry)


def spec_to_dict(spec: WorkerSpec) -> dict[str, object]:
    """For JSON; what is not known is left out."""
    found: dict[str, object] = {"url": spec.url, "role": spec.role.value}
    for name in ("bootstrap_port", "priority", "cost"):
        value = getattr(spec, name)
        if value is not None:
            found[name] = value
    if spec.labels:
        found["labels"] = dict(spec.labels)
    if spec.health:
        found["health"] = dict(spec.health)
    return found


def spec_from_dict(value: object) -> WorkerSpec | None:
    """What :func:`spec_to_dict` made; None if it is not that (a damaged file)."""
    found = mapping_of(value)
    url = text_of(found.get("url"), 400)
    role = next((role for role in WORKER_TYPES if role.value == found.get("role")), None)
    if url is None or role is None:
        return None
    return _spec(url, role, _labels(found.get("labels")), mapping_of(found.get("health")), found)


def body_of(spec: WorkerSpec, *, health_table: bool, api_key: str | None) -> dict[str, object]:
    """The body of ``POST /workers``. ``health_table``: smg's form; else only the switch is understood.

    The address is written in one form, because routers take ``http://h:1/`` beside ``http://h:1`` as a
    second worker, and the type always, because without it a worker is ``regular`` and gets nothing.

    Raises:
        AddressError: the address cannot be read.
        KeyError: there is no type for this role.
    """
    body: dict[str, object] = {
        "url": Address.parse(spec.url).base_url,
        "worker_type": WORKER_TYPES[spec.role],
        "bootstrap_port": spec.bootstrap_port,
        "priority": spec.priority,
        "cost": spec.cost,
        "labels": dict(spec.labels) or None,
        "api_key": api_key,
    }
    no_check = bool(spec.health.get(_NO_CHECK))
    if health_table:
        values: dict[str, int | bool] = {k: v for k, v in spec.health.items() if k != _NO_CHECK}
        body["health"] = values | ({_NO_CHECK: True} if no_check else {}) or None
    elif no_check:
        body[_NO_CHECK] = True
    return {name: value for name, value in body.items() if value is not None}


def _spec(
    url: str, role: Role, labels: dict[str, str], health: Mapping[str, object], entry: Mapping[str, object]
) -> WorkerSpec:
    values = {name: whole_of(health.get(name)) for name in _HEALTH_SECONDS_AND_COUNTS}
    values[_NO_CHECK] = 1 if health.get(_NO_CHECK) in (True, 1) else None
    return WorkerSpec(
        url=url,
        role=role,
        bootstrap_port=_at_most(_MAX_PORT, whole_of(entry.get("bootstrap_port"))) or None,
        labels=labels,
        priority=_at_most(_MAX_U32, whole_of(entry.get("priority"))),
        cost=number_of(entry.get("cost")) or None,  # smg refuses 0
        health={name: value for name, value in values.items() if value is not None},
    )


def _at_most(limit: int, value: int | None) -> int | None:
    return value if value is not None and value <= limit else None


def _labels(value: object) -> dict[str, str]:
    """Texts that can be given back as they are; no secrets, nothing unprintable."""
    found: dict[str, str] = {}
    for name, text in mapping_of(value).items():
        if not isinstance(text, str) or len(text) > _MAX_LABEL or len(name) > _MAX_LABEL:
            continue
        if text.isprintable() and name.isprintable() and not secret_parts(name, text):
            found[name] = text
    return dict(list(found.items())[:_MAX_LABELS])
