"""Remembered specs: they come back exactly, a damaged one costs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtop.cluster.model import Role
from pdtop.operations.specs import Specs
from pdtop.operations.state import StateFolder
from pdtop.routers.spec import WorkerSpec

FULL = WorkerSpec(
    "http://10.0.1.11:30001",
    Role.PREFILL,
    bootstrap_port=8998,
    labels={"tier": "gold", "model_id": "[/red]"},
    priority=7,
    cost=1.5,
    health={"timeout_secs": 3},
)
PLAIN = WorkerSpec("http://10.0.2.21:30001", Role.DECODE)


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path, "prod", router="http://r:1")


def test_specs_come_back_for_their_router_and_worker(folder: StateFolder) -> None:
    specs = Specs(folder)
    assert specs.recall("R1", "a:1") is None
    assert specs.of_router("R1") == {}
    specs.forget("R1", "a:1")
    assert specs.remember("R1", "a:1", FULL)
    assert specs.remember("R1", "b:1", PLAIN)
    assert specs.remember("R2", "a:1", PLAIN)
    again = Specs(folder)
    assert (again.recall("R1", "a:1"), again.recall("R2", "a:1")) == (FULL, PLAIN)
    assert again.of_router("R1") == {"a:1": FULL, "b:1": PLAIN}
    again.remember("R1", "a:1", PLAIN)
    again.forget("R1", "b:1")
    assert again.of_router("R1") == {"a:1": PLAIN}


@pytest.mark.parametrize("router", ["../../x", "R\n1", "\x00", "\ud800", "x" * 5000])
def test_any_name_will_do(folder: StateFolder, router: str) -> None:
    specs = Specs(folder)
    assert specs.remember(router, "a:1", PLAIN)
    assert specs.of_router(router) == {"a:1": PLAIN}
    assert [path.parent for path in folder.path.rglob("*.json")] == [folder.path / "specs"]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"spec": 1}', b"\xff", b"[" * 100_000, b'{"spec": {"url": 3}}']
)
def test_a_damaged_one_costs_one(folder: StateFolder, damage: bytes) -> None:
    specs = Specs(folder)
    specs.remember("R1", "a:1", FULL)
    [path] = folder.path.rglob("*.json")
    specs.remember("R1", "b:1", PLAIN)
    path.write_bytes(damage)
    assert specs.recall("R1", "a:1") is None
    assert specs.of_router("R1") == {"b:1": PLAIN}
    specs.remember("R1", "a:1", FULL)
    assert specs.recall("R1", "a:1") == FULL


@pytest.mark.parametrize(
    "spec",
    [
        WorkerSpec("http://ops:hunter2@10.0.0.1:1", Role.DECODE),
        WorkerSpec("http://10.0.0.1:1", Role.DECODE, labels={"note": "sk-demo-0123456789"}),
        WorkerSpec("http://10.0.0.1:1", Role.DECODE, labels={"api_key": "Zx9"}),
    ],
)
def test_secrets_are_not_kept(folder: StateFolder, spec: WorkerSpec) -> None:
    assert not Specs(folder).remember("R1", "a:1", spec)
    assert not list(folder.path.rglob("*.json"))
