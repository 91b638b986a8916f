"""Drift: config.toml, routers and workers against each other, value by value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pdtop.cluster.model import Drift, Health, Identity, Role, RouterOpinion, Snapshot, State, Worker
from pdtop.config.schema import Config
from pdtop.insight.drift import drift
from pdtop.insight.findings import NOTHING, judge
from tests.insight.scenes import opinion, router, scene, worker

P1, D1, D2 = "10.0.1.1:30001", "10.0.2.1:30001", "10.0.2.2:30001"


def config(**tables: dict[str, Any]) -> Config:
    """P1 in prefill, D1 in decode, and what is special about them."""
    return Config.model_validate(
        {
            "prefill": {"workers": [P1], "worker": {P1: tables.get("p1", {})}},
            "decode": {"workers": [D1], "worker": {D1: tables.get("d1", {})}},
        }
    )


def prefill(said: RouterOpinion | None = None, **more: object) -> Worker:
    return worker(P1, Role.PREFILL, opinions=(said or opinion(),), **more)


def decode(said: RouterOpinion | None = None, **more: object) -> Worker:
    return worker(D1, opinions=(said or opinion(),), **more)


def told(snapshot: Snapshot, file: Config | None = None) -> list[tuple[str, str]]:
    return [(one.worker, one.text) for one in drift(file or config(), snapshot)]


def only(snapshot: Snapshot, file: Config | None = None) -> Drift:
    (one,) = drift(file or config(), snapshot)
    return one


ABSENT = opinion(None, None, listed=False)


def test_three_that_agree() -> None:
    p = prefill(
        opinion(role=Role.PREFILL, bootstrap_port=8998),
        identity=Identity(role=Role.PREFILL, bootstrap_port=8998),
    )
    d = decode(opinion(role=Role.DECODE, weight=1.0), identity=Identity(role=Role.DECODE))
    assert told(scene(p, d, routers=[router()]), config(p1={"bootstrap_port": 8998})) == []


@pytest.mark.parametrize(
    ("listed", "engine", "text"),
    [
        (Role.DECODE, Role.PREFILL, "role: router says decode, engine says prefill"),
        (Role.PREFILL, Role.DECODE, "role: config says decode, router says prefill, engine says decode"),
        (Role.PREFILL, Role.UNKNOWN, "role: config says decode, router says prefill"),
        (None, Role.UNIFIED, "role: config says decode, engine says unified"),
        (Role.DECODE, Role.UNKNOWN, None),
        (None, Role.UNKNOWN, None),
    ],
)
def test_role(listed: Role | None, engine: Role, text: str | None) -> None:
    one = decode(opinion(role=listed), identity=Identity(role=engine))
    expected = [(D1, text)] if text else []
    assert told(scene(one, routers=[router()])) == expected


def test_a_role_is_compared_without_a_router_too() -> None:
    one = worker(D1, identity=Identity(role=Role.PREFILL))
    assert told(scene(one)) == [(D1, "role: config says decode, engine says prefill")]


@pytest.mark.parametrize(
    ("file", "listed", "engine", "text"),
    [
        (None, 8998, 8999, "bootstrap_port: router says 8998, engine says 8999"),
        (8997, 8998, None, "bootstrap_port: config says 8997, router says 8998"),
        (8997, None, 8998, "bootstrap_port: config says 8997, engine says 8998"),
        (None, 8998, None, None),
        (8998, 8998, 8998, None),
    ],
)
def test_bootstrap_port(file: int | None, listed: int | None, engine: int | None, text: str | None) -> None:
    one = prefill(opinion(role=Role.PREFILL, bootstrap_port=listed), identity=Identity(bootstrap_port=engine))
    settings = {"bootstrap_port": file} if file else {}
    assert told(scene(one, routers=[router()]), config(p1=settings)) == ([(P1, text)] if text else [])


def test_a_decode_worker_has_no_bootstrap_port_to_differ_in() -> None:
    one = decode(opinion(role=Role.DECODE), identity=Identity(role=Role.DECODE, bootstrap_port=8998))
    assert told(scene(one, routers=[router()])) == []


def test_missing_here_and_there() -> None:
    stranger = worker(D2, opinions=(opinion(),))
    found = drift(config(), scene(decode(ABSENT), stranger, routers=[router()]))
    assert [(one.worker, one.kind, one.text, one.router) for one in found] == [
        (D1, "not_in_router", "in config, not in router", "r"),
        (D2, "not_in_config", "in router, not in config", "r"),
    ]


def test_each_router_is_compared_and_named() -> None:
    said = (opinion(router="a"), opinion(None, None, router="b", listed=False))
    found = only(scene(worker(D1, opinions=said), routers=[router(name="a"), router(name="b")]))
    assert (found.text, found.router) == ("in config, not in router b", "b")


def test_one_worker_under_two_names_is_listed_if_one_of_them_is() -> None:
    one = worker(D1, opinions=(ABSENT, opinion()))
    assert told(scene(one, routers=[router()])) == []


@pytest.mark.parametrize("unknown", [{"workers": None}, {"list_stale": True}])
def test_an_unknown_list_is_no_difference(unknown: dict[str, object]) -> None:
    stranger = worker(D2, opinions=(opinion(),))
    assert told(scene(decode(ABSENT), stranger, routers=[router(**unknown)])) == []


def test_a_file_that_names_no_workers_says_nothing_about_them() -> None:
    assert told(scene(decode(), routers=[router()]), Config()) == []
    assert drift(None, scene(decode(), routers=[router()])) == ()


def test_a_worker_on_its_way_out_is_no_stranger() -> None:
    leaving = worker(D2, opinions=(opinion(Health.DRAINING),))
    assert told(scene(leaving, routers=[router()])) == []


@pytest.mark.parametrize(
    ("engine", "said", "drained", "text"),
    [
        ("smg", opinion(), True, "drain: config says drained, router still has it"),
        ("smg", opinion(Health.UNHEALTHY), True, "drain: config says drained, router still has it"),
        ("smg", opinion(Health.DRAINING), True, None),
        ("smg", ABSENT, True, None),
        ("smg", opinion(Health.DRAINING), False, "drain: only router drains it"),
        ("sglang-router", ABSENT, True, None),
        ("pdtop", ABSENT, True, "in config, not in router"),
        ("pdtop", opinion(Health.DRAINING), True, None),
        ("sgl-router", opinion(None), True, None),
    ],
)
def test_drain(engine: str, said: RouterOpinion, drained: bool, text: str | None) -> None:
    file = config(d1={"drain": drained})
    assert told(scene(decode(said), routers=[router(engine=engine)]), file) == ([(D1, text)] if text else [])


def test_weight_where_the_router_has_one() -> None:
    file = config(d1={"weight": 0.5})
    assert told(scene(decode(opinion(weight=None)), routers=[router()]), file) == []
    shown = scene(decode(opinion(weight=1.0)), routers=[router(engine="pdtop")])
    assert told(shown, file) == [(D1, "weight: config says 0.5, router says 1")]


def test_a_refused_key() -> None:
    one = decode(state=State.AUTH, status=401, fix="set the variable K")
    found = only(scene(one, routers=[router()]))
    assert (found.kind, found.text, found.fix) == (
        "key",
        "key: the worker refuses pdtop's key (401)",
        "set the variable K",
    )


def test_models_and_versions_within_a_pool() -> None:
    workers = [worker(f"d{n}", identity=Identity(model="m", version="0.5.23")) for n in range(2)]
    odd = worker("odd", identity=Identity(model="other", version="0.5.22"))
    silent = worker("silent", identity=Identity())
    gone = worker("gone", identity=Identity(model="old"), state=State.REFUSED)
    found = drift(Config(), scene(*workers, odd, silent, gone))
    assert [(one.worker, one.kind, one.text) for one in found] == [
        ("odd", "model", "model: engine says other, its pool has m"),
        ("odd", "version", "version: engine says 0.5.22, its pool has 0.5.23"),
    ]


def test_spellings_of_one_node_are_one_worker() -> None:
    file = Config.model_validate({"decode": {"workers": ["http://NODE-7:30001/", "node-7:30001@1"]}})
    one = worker("node-7:30001", opinions=(opinion(),))
    assert told(scene(one, routers=[router()]), file) == []


def test_every_difference_says_what_to_do() -> None:
    p = prefill(
        opinion(role=Role.PREFILL, bootstrap_port=1), identity=Identity(role=Role.PREFILL, bootstrap_port=2)
    )
    stranger = worker(D2, opinions=(opinion(role=Role.DECODE),), identity=Identity(role=Role.PREFILL))
    found = drift(config(d1={"drain": True}), scene(p, decode(), stranger, routers=[router()]))
    assert {one.kind for one in found} == {"bootstrap_port", "drain", "not_in_config", "role"}
    assert all(one.fix for one in found)


def test_what_costs_requests_is_a_finding_and_nothing_is_said_twice() -> None:
    p = prefill(opinion(role=Role.PREFILL, bootstrap_port=1), identity=Identity(bootstrap_port=2))
    d = decode(opinion(role=Role.DECODE), identity=Identity(role=Role.PREFILL))
    stranger = worker(D2, opinions=(opinion(),))
    made = scene(p, d, stranger, routers=[router(workers=3)])
    made = replace(made, drift=drift(config(), made))
    found = judge(made, 0.0).findings
    assert [(one.kind, one.worker, one.pool) for one in found] == [
        ("role_mismatch", D1, Role.DECODE),
        ("bootstrap_port_mismatch", P1, Role.PREFILL),
    ]
    assert found[0].text == "role: router says decode, engine says prefill"


def test_a_drain_that_a_router_does_not_know_is_told_after_a_moment() -> None:
    made = scene(decode(draining=True), routers=[router()])
    made = replace(made, drift=drift(config(d1={"drain": True}), made))
    first = judge(made, 0.0, NOTHING)
    assert "drain_not_in_force" not in [one.kind for one in first.findings]
    assert "drain_not_in_force" in [one.kind for one in judge(made, 10.0, first.memory).findings]
    by_router = scene(decode(opinion(Health.DRAINING)), routers=[router()])
    by_router = replace(by_router, drift=drift(config(), by_router))
    later = judge(by_router, 99.0, judge(by_router, 0.0).memory)
    assert by_router.drift
    assert "drain_not_in_force" not in [one.kind for one in later.findings]
