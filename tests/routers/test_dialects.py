"""Every captured answer of real routers, read with exact values, and how the routers are told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.model import Breaker, Health, Role, State
from pdtop.cluster.readings import Answer, ListedWorker
from pdtop.routers import detect
from pdtop.routers.dialect import read_loads, read_readiness, read_version, read_workers

FIXTURES = Path(__file__).parent.parent / "fixtures"
ROUTER = FIXTURES / "router"
REAL = FIXTURES / "real"
HEALTHY, UNHEALTHY = Health.HEALTHY, Health.UNHEALTHY


def workers(name: str) -> dict[int, ListedWorker]:
    """By port."""
    found = read_workers((ROUTER / name).read_bytes())
    assert found is not None
    return {int(worker.url.rpartition(":")[2]): worker for worker in found}


def ok(body: bytes, **kw: Any) -> Answer:
    return Answer(1.0, 0.1, **{"status": 200, "body": body, **kw})


@pytest.mark.parametrize(
    ("name", "loads", "sick"),
    [
        ("sglang-router-0.3.2-workers.json", [0, 0, 0, 0, 0, 0, 0], {}),
        ("sglang-router-0.3.2-workers-inflight.json", [4, 4, 2, 1, 3, 4, 2], {}),
        ("sglang-router-0.3.2-workers-one-decode-dead.json", [0, 0, 0, 0, 0, 0, 0], {18202: UNHEALTHY}),
        ("smg-1.13.0-workers.json", [0, 0, 0, 0, 0, 0, 0], {}),
        ("smg-1.13.0-workers-inflight.json", [0, 0, 0, 2, 4, 2, 2], {}),
        ("smg-1.13.0-workers-one-decode-dead.json", [0, 0, 0, 0, 0, 0, 0], {18202: UNHEALTHY}),
        ("smg-1.13.0-workers-draining.json", [0, 0, 0, 0, 0, 0, 0], {18202: Health.DRAINING}),
    ],
)
def test_worker_lists(name: str, loads: list[int], sick: dict[int, Health]) -> None:
    found = workers(name)
    ports = [18101, 18102, 18103, 18201, 18202, 18203, 18204]
    assert sorted(found) == ports
    assert [found[port].load for port in ports] == loads
    for port, worker in found.items():
        prefill = port < 18200
        assert worker.url == f"http://127.0.0.1:{port}"
        assert worker.role is (Role.PREFILL if prefill else Role.DECODE)
        assert worker.bootstrap_port == (port + 800 if prefill else None)
        assert worker.health is sick.get(port, HEALTHY)
        assert worker.model == "fake-model"
        assert len(worker.worker_id) == 36
        assert worker.weight is None  # priority and cost are no weights
        assert worker.labels["disaggregation_mode"] == worker.role.value


def test_one_worker_by_its_id() -> None:
    body = (ROUTER / "smg-1.13.0-worker-draining-by-id.json").read_text()
    found = read_workers(f'{{"workers": [{body}]}}'.encode())
    assert found is not None
    assert found[0].health is Health.DRAINING


@pytest.mark.parametrize("path", sorted(REAL.rglob("router.workers.json")), ids=lambda p: p.parent.name)
def test_lists_of_real_clusters(path: Path) -> None:
    found = read_workers(path.read_bytes())
    assert found is not None
    count = 4 if path.parent.name.startswith("2p2d") else 2
    assert len(found) == count
    assert {worker.role for worker in found} == {Role.PREFILL, Role.DECODE}
    engine = "smg" if "smg" in str(path) else "sglang-router"
    dialect = detect.by_list(ok(path.read_bytes()))
    assert dialect is not None
    assert dialect.engine == engine


def test_loads_of_sglang_router() -> None:
    found = read_loads((ROUTER / "sglang-router-0.3.2-get-loads.json").read_bytes())
    base = "http://127.0.0.1:"
    assert found == {
        f"{base}18101": 0.0,
        f"{base}18102": 0.0,
        f"{base}18103": 0.0,
        f"{base}18201": 50.0,
        f"{base}18202": 0.0,
        f"{base}18203": 0.0,
        f"{base}18204": None,  # -1: it could not find out
    }


def test_loads_of_smg() -> None:
    body = (ROUTER / "smg-1.13.0-get-loads.json").read_bytes()
    base = "http://127.0.0.1:"
    assert read_loads(body) == {
        f"{base}18101": 0.0,
        f"{base}18102": 0.0,
        f"{base}18103": 0.0,
        f"{base}18201": 7.0,
        f"{base}18202": 0.0,
        f"{base}18203": 0.0,
    }
    assert read_version(body) == ("smg", "1.13.0")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("pdtop-0.1.0", ("pdtop", "0.1.0")),
        ("smg-1.13.0-rc1", ("smg", "1.13.0-rc1")),
        ("0.5.23", None),
        (7, None),
    ],
)
def test_versions(version: object, told: tuple[str, str] | None) -> None:
    body = json.dumps({"version": version, "loads": []}).encode()
    assert read_version(body) == told
    found = detect.by_loads(ok(body))
    assert (found.engine if found else None) == (told[0] if told else None)


def test_loads_of_a_real_engine_that_no_longer_serves_them() -> None:
    folder = REAL / "sglang-0.5.23+sglang-router-0.3.2" / "2p2d-load"
    found = read_loads((folder / "router.get_loads.json").read_bytes())
    assert found is not None
    assert set(found.values()) == {None}
    assert len(found) == 4


def test_ranks_are_added_and_one_unknown_makes_the_load_unknown() -> None:
    entry = {"worker": "u", "num_running_reqs": 2, "num_waiting_reqs": 1}
    assert read_loads(json.dumps({"loads": [entry, entry]}).encode()) == {"u": 6.0}
    unknown = {"worker": "u", "num_running_reqs": 2}
    assert read_loads(json.dumps({"loads": [entry, unknown]}).encode()) == {"u": None}


@pytest.mark.parametrize(
    ("body", "urls"),
    [
        (b'{"workers": []}', []),
        (b'{"urls": ["http://a:1", "http://b:2"]}', ["http://a:1", "http://b:2"]),
        (b'{"workers": ["http://a:1", 7, null, {}, {"url": ""}, {"url": 5}]}', ["http://a:1"]),
        (b'{"workers": [{"url": "http://a:1@0", "worker_type": ["x"], "load": -1}]}', ["http://a:1@0"]),
    ],
)
def test_other_lists(body: bytes, urls: list[str]) -> None:
    found = read_workers(body)
    assert found is not None
    assert [worker.url for worker in found] == urls
    assert all((worker.role, worker.load, worker.health) == (Role.UNKNOWN, None, None) for worker in found)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"workers": 7}', b"<html>", b"[" * 99_999, b"\xff"])
def test_no_lists(body: bytes) -> None:
    assert read_workers(body) is None
    assert read_loads(body) is None


def test_fields_that_only_some_routers_give() -> None:
    entry = {
        "url": "http://a:1",
        "worker_type": "regular",
        "status": "pending",
        "breaker": "half_open",
        "weight": 0.5,
        "model_id": "unknown",
        "labels": {"rack": "r1", "api_key": "x", "auth_token": "y", "n": 5, "tab": "a\tb"},
    }
    found = read_workers(json.dumps({"workers": [entry]}).encode())
    assert found == (
        ListedWorker(
            "",
            "http://a:1",
            Role.UNIFIED,
            health=Health.PENDING,
            breaker=Breaker.HALF_OPEN,
            weight=0.5,
            labels={"rack": "r1", "tab": "a b"},
        ),
    )


@pytest.mark.parametrize(
    ("status", "body", "ready", "reason"),
    [
        (200, b'{"status":"ready","healthy_workers":7,"total_workers":7}', True, ""),
        (503, b'{"status":"not ready","reason":"draining"}', False, "draining"),
        (503, b"", False, "not ready"),
        (404, b"", None, ""),
        (None, b"", None, ""),
    ],
)
def test_readiness(status: int | None, body: bytes, ready: bool | None, reason: str) -> None:
    found = read_readiness(status, body)
    assert (found.ready, found.reason) == (ready, reason)


def test_the_fork_s_readiness_names_the_empty_pool() -> None:
    read = detect.DIALECTS["vllm-router"].readiness
    body = b'{"status":"not ready","prefill":{"healthy":3,"total":3},"decode":{"healthy":0,"total":4}}'
    assert read(503, body).reason == "no healthy decode worker"
    assert read(200, body).ready is True


def probed(router: str) -> Answer:
    for exchange in json.loads((ROUTER / f"{router}-http-get.json").read_text()):
        if exchange["request"]["path"] == detect.PROBE:
            body = exchange["response"]["body"]
            raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            return ok(raw, status=exchange["response"]["status"])
    raise AssertionError("not captured")


@pytest.mark.parametrize(
    ("router", "engine"), [("sglang-router-0.3.2", "sglang-router"), ("smg-1.13.0", "smg")]
)
def test_a_router_without_workers_is_known_by_what_it_does_not_know(router: str, engine: str) -> None:
    assert detect.by_list(ok(b'{"workers":[],"total":0}')) is None
    found = detect.by_probe(probed(router))
    assert found is not None
    assert found.engine == engine


@pytest.mark.parametrize(
    ("answer", "engine"),
    [
        (ok(b'{"urls": ["http://a:1"]}'), "vllm-router"),
        (ok(b'{"detail":"Not Found"}', status=404), None),
        (ok(b"<html>", status=404), None),
        (Answer(1.0, 2.0, failure=State.TIMEOUT), None),
    ],
)
def test_probes(answer: Answer, engine: str | None) -> None:
    found = detect.by_probe(answer)
    assert (found.engine if found else None) == engine


def test_pdtop_s_own_router_says_so() -> None:
    found = detect.by_list(ok(b'{"workers":[]}', headers={"server": "pdtop/0.1"}))
    assert found is not None
    assert (found.engine, found.metrics_port) == ("pdtop", None)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("sglang-router-0.3.2-get-loads.json", "sglang-router"), ("smg-1.13.0-get-loads.json", "smg")],
)
def test_loads_tell_the_router_too(name: str, engine: str) -> None:
    found = detect.by_loads(ok((ROUTER / name).read_bytes()))
    assert found is not None
    assert found.engine == engine
    assert detect.by_loads(ok(b"{}")) is None
    assert detect.by_loads(ok(b"", status=404)) is None


@pytest.mark.parametrize(
    ("family", "before", "engine"),
    [
        ("sgl_router", "vllm-router", "sgl-router"),
        ("vllm_router", "unknown", "vllm-router"),
        ("smg", "sglang-router", "sglang-router"),
        ("smg", "smg", "smg"),
        ("", "unknown", "unknown"),
    ],
)
def test_metric_names_tell_old_routers(family: str, before: str, engine: str) -> None:
    assert detect.by_metrics(family, detect.DIALECTS[before]).engine == engine


def test_what_a_router_cannot_do_is_said() -> None:
    assert any("cache_aware" in limit for limit in detect.limits_of("sglang-router"))
    assert any("weights" in limit for limit in detect.limits_of("smg"))
    assert detect.limits_of("something else") == ()
    assert [name for name, dialect in detect.DIALECTS.items() if dialect.control] == [
        "sglang-router",
        "smg",
    ]
