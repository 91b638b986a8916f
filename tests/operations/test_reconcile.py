"""From what routers list to what config.toml says: which calls, in which order, and which not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pdtop.cluster.address import Address
from pdtop.cluster.model import Breaker, Health, Role
from pdtop.cluster.readings import ListedWorker
from pdtop.config.schema import Config
from pdtop.operations.reconcile import Action, Actions, Add, Change, LeftAlone, Remove, actions, reassert

P1, P2, D1, D2, D3 = "10.0.1.1:30001", "10.0.1.2:30001", "10.0.2.1:30001", "10.0.2.2:30001", "10.0.2.3:30001"
SMG = {"r": "smg"}


def config(
    prefill: Sequence[str] = (P1, P2),
    decode: Sequence[str] = (D1, D2),
    *,
    drained: Sequence[str] = (),
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **tables: Any,
) -> Config:
    """A file with these workers; ``own``: what is special about one."""
    special = {key: dict(table) for key, table in (own or {}).items()}
    for key in drained:
        special.setdefault(key, {})["drain"] = True
    pools = {
        role: {"workers": list(keys), "worker": {key: special[key] for key in keys if key in special}}
        for role, keys in (("prefill", prefill), ("decode", decode))
    }
    for role, pool in pools.items():
        pool.update(tables.pop(role + "_pool", {}))
    return Config.model_validate({**pools, **tables})


def entry(key: str, role: Role | None = None, **more: Any) -> ListedWorker:
    if role is None:
        role = Role.PREFILL if ".1." in key else Role.DECODE
    more.setdefault("health", Health.HEALTHY)
    if role is Role.PREFILL:
        more.setdefault("bootstrap_port", 8998)
    return ListedWorker(f"id-{key}", more.pop("url", f"http://{key}"), role, **more)


ALL = (entry(P1), entry(P2), entry(D1), entry(D2))


def do(file: Config, *listed: ListedWorker, **more: Any) -> tuple[Action, ...]:
    """What is done at the only router."""
    return whole(file, *listed, **more).by_router["r"]


def whole(file: Config, *listed: ListedWorker, engine: str = "smg", **more: Any) -> Actions:
    return actions(file, {"r": listed}, engines={"r": engine}, **more)


def short(made: Sequence[Action]) -> list[tuple[str, str, str]]:
    return [(type(action).__name__, action.key, action.why) for action in made]


def test_a_router_that_is_as_the_file_says() -> None:
    made = whole(config(), *ALL)
    assert made.nothing_to_do
    assert made == Actions({"r": ()})


def test_what_is_missing_is_added_with_all_that_a_router_must_be_told() -> None:
    file = config(
        prefill=[P1, "HTTPS://Node-7:30001/"],
        own={"HTTPS://Node-7:30001/": {"bootstrap_port": 9001, "api_key_env": "OWN"}},
        health={"interval_secs": 3.0, "unhealthy_threshold": 4},
    )
    made = do(file, entry(P1), entry(D1), before=file)
    assert made == (
        Add(
            Role.PREFILL,
            "https://node-7:30001",
            9001,
            "not in the router",
            "node-7:30001",
            {"check_interval_secs": 3, "failure_threshold": 4},
            "OWN",
        ),
        Add(
            Role.DECODE,
            f"http://{D2}",
            None,
            "not in the router",
            D2,
            {"check_interval_secs": 3, "failure_threshold": 4},
            "PDTOP_API_KEY",
        ),
    )
    plain = actions(file, {"r": (entry(P1), entry(D1))}, engines={"r": "sglang-router"}, before=file)
    assert [action.health for action in plain.by_router["r"] if isinstance(action, Add)] == [{}, {}]


def test_a_bootstrap_port_that_the_file_leaves_out_is_the_worker_s_own() -> None:
    (added,) = do(config(), *ALL[1:], ports={P1: 8999, D1: 1})
    assert isinstance(added, Add)
    assert added.bootstrap_port == 8999


@pytest.mark.parametrize("engine", ["smg", "sglang-router"])
def test_drain(engine: str) -> None:
    made = do(config(drained=[D1]), *ALL, engine=engine)
    assert made == (Remove(f"id-{D1}", f"http://{D1}", D1, "drain"),)


def test_a_drained_worker_that_is_gone_or_leaving_needs_nothing() -> None:
    file = config(drained=[D1])
    assert do(file, *ALL[:2], entry(D2)) == ()
    assert do(file, *ALL[:2], entry(D2), entry(D1, health=Health.DRAINING)) == ()


def test_undrain_waits_until_the_router_has_let_it_go() -> None:
    before = config(drained=[D1])
    (added,) = do(config(), *ALL[:2], entry(D2), before=before)
    assert short([added]) == [("Add", D1, "no longer drained")]
    assert isinstance(added, Add)
    assert not added.when_absent
    (again,) = do(config(), *ALL[:2], entry(D2), entry(D1, health=Health.DRAINING), before=before)
    assert isinstance(again, Add)
    assert again.when_absent


def test_weight_0_is_no_drain() -> None:
    assert do(config(own={D1: {"weight": 0.0}}), *ALL) == ()


def test_who_goes_when_the_file_does_not_name_him() -> None:
    file = config(decode=[D2])
    assert short(do(file, *ALL, before=config())) == [("Remove", D1, "removed from config.toml")]
    assert short(do(file, *ALL, known=frozenset({D1}))) == [("Remove", D1, "removed from config.toml")]
    assert short(do(file, *ALL, prune=True)) == [("Remove", D1, "not in config.toml")]
    alone = whole(file, *ALL)
    assert alone.by_router["r"] == ()
    assert alone.left_alone == (LeftAlone(D1, "in router, not in config.toml", "r"),)
    assert do(file, *ALL[:2], entry(D2), entry(D1, health=Health.DRAINING), prune=True) == ()


def test_workers_come_before_others_go() -> None:
    file = config(decode=[D3, D2], drained=[P2])
    assert short(do(file, *ALL, before=config())) == [
        ("Add", D3, "not in the router"),
        ("Remove", P2, "drain"),
        ("Remove", D1, "removed from config.toml"),
    ]


def test_the_order_does_not_depend_on_the_router_s() -> None:
    file = config(decode=[D2], drained=[P1], health={"interval_secs": 3})
    forward, backward = whole(file, *ALL, prune=True), whole(file, *reversed(ALL), prune=True)
    assert forward == backward


def test_role_and_bootstrap_port_are_never_edited_in_place() -> None:
    file = config(
        prefill=[P1, P2, D2], decode=[D1], own={P1: {"bootstrap_port": 8999}, D2: {"bootstrap_port": 9000}}
    )
    made = do(file, *ALL)
    assert short(made) == [
        ("Remove", P1, "bootstrap port changed"),
        ("Add", P1, "registered anew"),
        ("Remove", D2, "role changed"),
        ("Add", D2, "registered anew"),
    ]
    adds = [action for action in made if isinstance(action, Add)]
    assert [(add.role, add.bootstrap_port, add.when_absent) for add in adds] == [
        (Role.PREFILL, 8999, True),
        (Role.PREFILL, 9000, True),
    ]


def test_a_port_that_the_list_does_not_show_counts_only_if_the_file_s_was_changed() -> None:
    file = config(own={P1: {"bootstrap_port": 8999}})
    listed = (entry(P1, bootstrap_port=None), *ALL[1:])
    assert do(file, *listed) == ()
    assert do(file, *listed, before=file) == ()
    assert short(do(file, *listed, before=config())) == [
        ("Remove", P1, "bootstrap port changed"),
        ("Add", P1, "registered anew"),
    ]


def test_an_unknown_role_is_no_difference() -> None:
    assert do(config(), *ALL[:3], entry(D2, Role.UNKNOWN)) == ()


def test_a_regular_worker_is_registered_anew() -> None:
    made = do(config(), *ALL[:3], entry(D2, Role.UNIFIED))
    assert short(made) == [("Remove", D2, "role changed"), ("Add", D2, "registered anew")]


def test_ranks_and_spellings_are_one_worker() -> None:
    ranks = [ListedWorker(f"id-{n}", f"http://{D1}@{n}", Role.DECODE, Health.HEALTHY) for n in (1, 0)]
    rest = (entry(P1), entry(P2), entry(D2, url="http://10.0.2.2:30001/"))
    assert do(config(), *ranks, *rest) == ()
    made = do(config(drained=[D1]), *ranks, *rest)
    assert [(m.worker_id, m.url, m.key) for m in made if isinstance(m, Remove)] == [
        ("id-0", f"http://{D1}@0", D1),
        ("id-1", f"http://{D1}@1", D1),
    ]


def test_a_worker_under_another_name_is_not_added_twice() -> None:
    other = entry("node-21:30001", Role.DECODE)
    same = {"node-21:30001": D1}
    assert do(config(), *ALL[:2], other, entry(D2), same=same) == ()
    twice = config(decode=[D1, D2, "node-21:30001"], drained=[D1])
    assert len(do(twice, *ALL[:2], other, entry(D2), same=same, scope=frozenset(same))) == 1
    (removed,) = do(config(drained=[D1]), *ALL[:2], other, entry(D2), same=same)
    assert isinstance(removed, Remove)
    assert (removed.worker_id, removed.key) == ("id-node-21:30001", D1)
    gone = do(config(decode=[D2]), *ALL[:2], other, entry(D2), same=same, known=frozenset({D1}))
    assert short(gone) == [("Remove", D1, "removed from config.toml")]


def test_loopback_in_a_list_is_the_router_s_machine() -> None:
    file = config(prefill=["10.0.0.9:30001"], decode=[D1])
    listed = entry("x", Role.PREFILL, url="http://127.0.0.1:30001")
    assert do(file, listed, entry(D1), routers={"r": Address.parse("http://10.0.0.9:30000")}) == ()


def test_only_what_is_in_the_scope_is_touched() -> None:
    file = config(decode=[D1, D3], drained=[D1, P1])
    made = whole(file, *ALL, before=config(), scope=frozenset({D1}))
    assert short(made.by_router["r"]) == [("Remove", D1, "drain")]
    assert made.left_alone == ()


# The last of a pool


def test_a_drain_that_would_empty_the_pool_is_not_made() -> None:
    made = whole(config(decode=[D1], drained=[D1]), entry(P1), entry(P2), entry(D1))
    assert made.by_router["r"] == ()
    (guard,) = made.guards
    assert (guard.kind, guard.override, guard.blocks) == ("last_of_pool", D1, True)
    assert "last usable decode worker" in guard.text
    assert f"pdtop drain {D1}" in guard.to_change


def test_unless_that_was_confirmed() -> None:
    made = whole(
        config(decode=[D1], drained=[D1]), entry(P1), entry(P2), entry(D1), confirmed=frozenset({D1})
    )
    assert short(made.by_router["r"]) == [("Remove", D1, "drain")]
    assert made.guards == ()


def test_of_two_drained_one_stays() -> None:
    made = whole(config(drained=[D1, D2]), *ALL)
    assert short(made.by_router["r"]) == [("Remove", D1, "drain")]
    assert [guard.override for guard in made.guards] == [D2]


@pytest.mark.parametrize(
    ("other", "usable"),
    [
        ({"health": Health.UNHEALTHY}, {}),
        ({"health": Health.PENDING}, {}),
        ({"health": Health.DRAINING}, {}),
        ({"breaker": Breaker.OPEN}, {}),
        ({"breaker": Breaker.HALF_OPEN}, {}),
        ({}, {D2: False}),
    ],
)
def test_who_cannot_take_requests_does_not_count(other: dict[str, Any], usable: dict[str, bool]) -> None:
    file = config(drained=[D1], own={D2: {"drain": other.get("health") is Health.DRAINING}})
    made = whole(file, entry(P1), entry(P2), entry(D1), entry(D2, **other), usable=usable)
    assert made.by_router["r"] == ()
    assert [guard.kind for guard in made.guards] == ["last_of_pool"]


def test_not_known_counts_as_usable_and_the_drained_one_s_own_word_does_not() -> None:
    """A snapshot calls the worker that is to be drained unusable as soon as the file says so."""
    usable = {D1: False, D2: None}
    made = whole(config(drained=[D1]), *ALL[:3], entry(D2, health=None), usable=usable)
    assert short(made.by_router["r"]) == [("Remove", D1, "drain")]
    last = whole(config(decode=[D1], drained=[D1]), *ALL[:3], usable={D1: False})
    assert [guard.kind for guard in last.guards] == ["last_of_pool"]


def test_a_dead_worker_may_go_from_a_dead_pool() -> None:
    dead = entry(D1, health=Health.UNHEALTHY)
    made = whole(config(decode=[D1], drained=[D1]), entry(P1), entry(P2), dead)
    assert short(made.by_router["r"]) == [("Remove", D1, "drain")]


def test_a_whole_pool_is_replaced_once_the_first_new_one_is_there() -> None:
    made = do(config(decode=[D2, D3]), entry(P1), entry(P2), entry(D1), before=config(decode=[D1]))
    assert short(made) == [
        ("Add", D2, "not in the router"),
        ("Add", D3, "not in the router"),
        ("Remove", D1, "removed from config.toml"),
    ]
    assert isinstance(made[2], Remove)
    assert made[2].after_any == (D2, D3)


def test_a_role_change_that_would_empty_the_pool_is_not_made() -> None:
    made = whole(config(prefill=[P1, D1], decode=[]), entry(P1), entry(D1))
    assert made.by_router["r"] == ()
    assert [guard.override for guard in made.guards] == [D1]


def test_the_only_worker_may_be_registered_anew() -> None:
    file = config(prefill=[P1], decode=[D1], own={P1: {"bootstrap_port": 8999}})
    assert short(do(file, entry(P1), entry(D1))) == [
        ("Remove", P1, "bootstrap port changed"),
        ("Add", P1, "registered anew"),
    ]


# Health settings


def test_changed_health_settings_go_to_every_worker_of_smg() -> None:
    before = config(health={"interval_secs": 5, "timeout_secs": 2})
    file = config(health={"interval_secs": 3, "timeout_secs": 2}, drained=[D1])
    made = do(file, *ALL, before=before, scope=frozenset({D1}))
    fields = {"health": {"check_interval_secs": 3, "timeout_secs": 2}}
    assert made == (
        *(Change(f"id-{key}", f"http://{key}", key, fields, "[health]") for key in (P1, P2, D2)),
        Remove(f"id-{D1}", f"http://{D1}", D1, "drain"),
    )


def test_a_health_setting_taken_out_of_the_file_goes_back_to_its_default() -> None:
    made = do(
        config(), entry(P1), entry(P2), entry(D1), entry(D2), before=config(health={"interval_secs": 9})
    )
    assert [m.fields for m in made if isinstance(m, Change)] == [{"health": {"check_interval_secs": 5}}] * 4


def test_what_the_file_does_not_say_is_left_to_the_router() -> None:
    assert do(config(), *ALL) == ()
    assert do(config(), *ALL, before=config()) == ()


def test_not_known_what_was_before_sets_all_of_the_scope_again() -> None:
    file = config(health={"interval_secs": 3})
    assert len(do(file, *ALL)) == 4
    assert [action.key for action in do(file, *ALL, scope=frozenset({P2}))] == [P2]
    assert do(file, *ALL, engine="sglang-router") == ()


# Routers


def test_every_router_is_brought_there_by_itself() -> None:
    made = actions(
        config(drained=[D1]),
        {"a": ALL, "b": (*ALL[:2], entry(D2)), "c": ALL},
        engines={"a": "smg", "b": "sglang-router", "c": "pdtop", "d": "smg"},
    )
    assert {name: short(done) for name, done in made.by_router.items()} == {
        "a": [("Remove", D1, "drain")],
        "b": [],
        "c": [],
        "d": [],
    }
    assert made.expect == {"c": {P1: "ready", P2: "ready", D1: "draining", D2: "ready"}}
    (guard,) = made.guards
    assert (guard.kind, guard.blocks) == ("router", False)
    assert guard.text.startswith("d: its worker list is not known")


def test_the_guard_names_the_router_if_there_are_several() -> None:
    file = config(decode=[D1], drained=[D1])
    made = actions(file, {"a": ALL[:3], "b": ALL[:3]}, engines={"a": "smg", "b": "smg"})
    assert [" at a:" in guard.text for guard in made.guards] == [True, False]


def test_a_router_that_reads_the_file_is_only_looked_at() -> None:
    file = config(prefill=[P1], decode=[D2, D3], drained=[D2])
    made = whole(file, *ALL, engine="pdtop", before=config(), known=frozenset({"10.0.9.9:1"}))
    assert made.by_router == {"r": ()}
    assert made.expect["r"] == {
        P1: "ready",
        D2: "draining",
        D3: "ready",
        P2: "absent",
        D1: "absent",
        "10.0.9.9:1": "absent",
    }
    scoped = whole(file, *ALL, engine="pdtop", before=config(), scope=frozenset({D1}))
    assert scoped.expect["r"] == {D1: "absent"}


@pytest.mark.parametrize("engine", ["sgl-router", "vllm-router", "unknown", "what-else"])
def test_a_router_that_takes_no_changes(engine: str) -> None:
    made = whole(config(drained=[D1]), *ALL, engine=engine)
    assert made.by_router["r"] == ()
    assert [guard.kind for guard in made.guards] == ["router"]
    assert whole(config(), *ALL, engine=engine).guards == ()


def test_after_a_restart_everything_is_asserted_again() -> None:
    file = config(decode=[D1, D2, D3], drained=[D1], health={"interval_secs": 3})
    gone = entry("10.0.2.9:30001", Role.DECODE)
    made = reassert(
        file, "r", (*ALL, gone), engine="smg", known=frozenset({gone.url.removeprefix("http://")})
    )
    assert short(made.by_router["r"]) == [
        ("Add", D3, "not in the router"),
        ("Change", P1, "[health]"),
        ("Change", P2, "[health]"),
        ("Change", D2, "[health]"),
        ("Remove", D1, "drain"),
        ("Remove", "10.0.2.9:30001", "removed from config.toml"),
    ]
    assert made.restart == ()


# What needs a restart


def test_changes_that_need_a_restart_are_collected() -> None:
    before = config(health={"interval_secs": 5})
    file = config(
        health={"interval_secs": 3},
        decode_pool={"policy": "round_robin"},
        drained=[D1],
        slo={"ttft_p99_ms": 1},
    )
    on_smg = whole(file, *ALL, before=before)
    assert [change.key for change in on_smg.restart] == ["decode.policy"]
    assert short(on_smg.by_router["r"])[-1] == ("Remove", D1, "drain")
    on_old = whole(file, *ALL, before=before, engine="sglang-router")
    assert [change.key for change in on_old.restart] == ["decode.policy", "health.interval_secs"]
    assert whole(file, *ALL).restart == ()
    assert whole(file, *ALL, before=before, engine="pdtop").restart == ()
