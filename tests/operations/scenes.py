"""Clusters made by hand for plans: a config.toml, a snapshot of its workers, and what their router is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pdtop.cluster.model import Role, Router, Snapshot, Worker
from pdtop.config.load import Loaded, load_bytes
from pdtop.operations.model import Guard, Plan, Request
from pdtop.operations.planning import plan
from pdtop.routers.spec import WorkerSpec
from tests.insight.scenes import router, scene, worker

P1, P2 = "10.0.1.11:30001", "10.0.1.12:30001"
D1, D2, D3 = "10.0.2.21:30001", "10.0.2.22:30001", "10.0.2.23:30001"

CONFIG = f"""\
[server]
port = 30000

[prefill]
workers = ["{P1}", "{P2}"]
policy = "cache_aware"
cache_aware_threshold = 0.30

[decode]
workers = [
    "{D1}",
    "{D2}",  # the new one
    "{D3}",
]
policy = "power_of_two"

[decode.worker."{D3}"]
rack = "r2"
"""

SMG = {"r": "smg"}
OWN = {"r": "pdtop"}


def loaded(text: str = CONFIG) -> Loaded:
    return load_bytes(Path("config.toml"), text.encode())


def cluster(*more: Worker, routers: Iterable[Router] | None = None) -> Snapshot:
    """Two prefill and three decode workers that are well, behind one router; ``more`` replace or add."""
    workers = {
        key: worker(key, role)
        for role, keys in ((Role.PREFILL, (P1, P2)), (Role.DECODE, (D1, D2, D3)))
        for key in keys
    }
    workers |= {one.key: one for one in more}
    return scene(*workers.values(), routers=routers or [router(workers=5)])


def planned(
    request: Request,
    snapshot: Snapshot | None = None,
    config: Loaded | str | None = CONFIG,
    engines: Mapping[str, str] | None = None,
    remembered: Mapping[str, WorkerSpec] | None = None,
) -> Plan:
    return plan(
        request,
        snapshot if snapshot is not None else cluster(),
        loaded(config) if isinstance(config, str) else config,
        engines=SMG if engines is None else engines,
        remembered=remembered or {},
    )


def allowed(made: Plan, *typed: str) -> bool:
    """Whether the plan may be carried out with these words typed."""
    return made.refusal is None and set(made.overrides) <= set(typed)


def the(made: Plan, kind: str) -> Guard:
    """The only guard of a kind."""
    found = [guard for guard in made.guards if guard.kind == kind]
    assert len(found) == 1, made.guards
    return found[0]


def kinds(made: Plan) -> list[str]:
    return [guard.kind for guard in made.guards]


def row(made: Plan, name: str) -> str:
    """The text of a line of the question, with the lines that belong to it."""
    texts, current = [], ""
    for label, text in made.rows:
        current = label or current
        if current == name:
            texts.append(text)
    assert texts, made.rows
    return "\n".join(texts)
