"""What speaks against a change, with the words and the way out."""

from __future__ import annotations

import math

import pytest

from pdtop.cluster.model import Identity, Role, State, Worker
from pdtop.operations.guards import pool_guards
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Guard,
    RemoveWorker,
    Request,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.routers.spec import WorkerSpec
from tests.insight.scenes import opinion, router, waits, worker
from tests.operations.scenes import (
    CONFIG,
    D1,
    D2,
    D3,
    OWN,
    P1,
    P2,
    SMG,
    allowed,
    cluster,
    kinds,
    loaded,
    planned,
    the,
)

NAN, INF = math.nan, math.inf
SGLANG = {"r": "sglang-router"}


def down(key: str, because: str = "circuit open in the router", usable: bool | None = False) -> Worker:
    return worker(key, usable=usable, unusable_because=because)


# The last of a pool.


@pytest.mark.parametrize(
    ("others", "to_change"),
    [
        (
            (down(D2), down(D3, "does not answer")),
            f"{D2} (circuit open in the router), {D3} (does not answer)",
        ),
        ((down(D2, "draining"), down(D3, "frozen")), f"{D2} (draining), {D3} (frozen)"),
        ((down(D2, "", None), down(D3, "not ready")), f"{D2} (not known to be usable), {D3} (not ready)"),
    ],
)
def test_the_last_usable_of_a_pool(others: tuple[Worker, ...], to_change: str) -> None:
    made = planned(Drain((D1,)), cluster(*others))
    assert the(made, "last_of_pool") == Guard(
        "last_of_pool",
        f"{D1} is the last usable decode worker: without it every new request fails",
        f"make another one usable first: {to_change}",
        override=D1,
    )
    assert not allowed(made)
    assert not allowed(made, D2)
    assert allowed(made, D1)


def test_several_that_are_the_last_together() -> None:
    made = planned(Drain((P1, P2)))
    assert the(made, "last_of_pool") == Guard(
        "last_of_pool",
        f"{P1}, {P2} are the last usable prefill workers: without them every new request fails",
        "add another prefill worker first",
        override=P2,
    )
    assert "capacity" not in kinds(made)  # one question for one danger


def test_the_name_to_type_is_one_that_is_missed() -> None:
    guard = the(planned(Drain((D1, D2)), cluster(down(D2), down(D3))), "last_of_pool")
    assert guard.override == D1
    assert guard.to_change == f"make another one usable first: {D3} (circuit open in the router)"


def test_a_dead_one_of_a_dead_pool_may_go() -> None:
    made = planned(Drain((D1,)), cluster(down(D1), down(D2), down(D3)))
    guard = the(made, "last_of_pool")
    assert guard.text == f"no decode worker is usable, with or without {D1}"
    assert not guard.blocks


def test_where_nothing_is_known_it_may_be_the_last() -> None:
    snapshot = cluster(*(down(key, "", None) for key in (D1, D2, D3)))
    guard = the(planned(Drain((D1,)), snapshot), "last_of_pool")
    assert guard.text == f"{D1} may be the last usable decode worker: without it every new request fails"
    assert guard.override == D1


@pytest.mark.parametrize(
    "request_",
    [
        RemoveWorker(D1),
        SetValue(("decode", "worker", D1, "drain"), "true"),
        SetValue(("decode", "workers"), f'["{D2}", "{D3}"]'),
        SetWeight(D1, 0),
        SetValue(("decode", "worker", D1, "weight"), "0"),
        UnsetValue(("decode", "workers")),
    ],
)
def test_however_it_is_asked_for(request_: Request) -> None:
    made = planned(request_, cluster(down(D2), down(D3)), engines=OWN)
    assert the(made, "last_of_pool").blocks
    assert not allowed(made)


def test_the_guard_serves_an_edit_by_hand_too() -> None:
    before = loaded().config
    after = loaded(CONFIG.replace(f'    "{D1}",\n', "").replace(f'    "{D2}",  # the new one\n', "")).config
    assert before is not None
    assert after is not None
    found = list(pool_guards(cluster(down(D3)), before, after, ["pdtop"]))
    assert [g.kind for g in found] == ["last_of_pool", "has_work", "has_work"]


# Capacity.


def test_what_the_rest_cannot_hold() -> None:
    full = [worker(key, kv_use=0.7) for key in (D1, D2, D3)]
    made = planned(Drain((D2,)), cluster(*full))
    assert the(made, "capacity") == Guard(
        "capacity",
        "the decode workers that stay would be at KV 105 % (now 70 %)",
        "wait for less load, or add a decode worker first",
        override=D2,
    )
    assert allowed(made, D2)


@pytest.mark.parametrize(("kv_use", "stops"), [(0.63, False), (0.64, True), (None, False)])
def test_ninety_five_percent_is_the_limit(kv_use: float | None, stops: bool) -> None:
    made = planned(Drain((D2,)), cluster(*(worker(key, kv_use=kv_use) for key in (D1, D2, D3))))
    assert ("capacity" in kinds(made)) is stops


@pytest.mark.parametrize(
    ("request_", "config", "stops"),
    [
        (Drain((P1,)), CONFIG, False),  # a half is not beyond a half
        (Drain((D1,)), CONFIG, False),
        (Drain((D1, D2)), CONFIG, True),
        (Drain((D1,)), CONFIG + "[console]\nconfirm_share = 0.3\n", True),
    ],
)
def test_a_share_of_the_pool(request_: Request, config: str, stops: bool) -> None:
    made = planned(request_, config=config)
    assert ("capacity" in kinds(made)) is stops
    if stops:
        assert "of the usable decode capacity away, more than" in the(made, "capacity").text
        assert made.overrides == (request_.workers[-1],) if isinstance(request_, Drain) else ()


def test_who_is_down_takes_nothing_away() -> None:
    made = planned(Drain((D1, D2)), cluster(down(D1), down(D2)))
    assert "capacity" not in kinds(made)
    assert "last_of_pool" not in kinds(made)


# Weights.


def test_all_weights_zero() -> None:
    config = CONFIG + f'weight = 0\n[decode.worker."{D1}"]\nweight = 0\n'
    for engines in (SMG, OWN):
        made = planned(SetWeight(D2, 0), config=config, engines=engines)
        assert the(made, "all_weights_zero") == Guard(
            "all_weights_zero",
            f"{D2} is the last decode worker with weight: at 0 nobody would take new work",
            "give another decode worker a weight above 0 first",
        )
        assert made.refusal is not None
        assert (made.edits, made.steps) == ((), ())


def test_drained_ones_do_not_keep_a_weight_up() -> None:
    config = CONFIG + f'weight = 0\n[decode.worker."{D1}"]\ndrain = true\n'
    assert "all_weights_zero" in kinds(planned(SetWeight(D2, 0), config=config))


def test_a_drain_that_leaves_only_weight_zero() -> None:
    config = CONFIG + f'weight = 0\n[decode.worker."{D1}"]\nweight = 0\n'
    assert the(planned(Drain((D2,)), config=config, engines=OWN), "last_of_pool").override == D2
    assert "last_of_pool" not in kinds(planned(Drain((D2,)), config=config, engines=SMG))  # reads no weights


def test_what_weight_zero_means() -> None:
    made = planned(SetWeight(D2, 0), engines=OWN)
    assert kinds(made) == ["weight_zero"]
    assert allowed(made)
    assert the(planned(SetWeight(D2, 0), engines=SMG), "no_effect") == Guard(
        "no_effect",
        "power_of_two in this router does not read weights",
        "it is recorded in config.toml and changes nothing; to stop new work, drain the worker",
        blocks=False,
    )


@pytest.mark.parametrize("weight", [NAN, INF, -INF, -0.5])
def test_weights_that_are_none(weight: float) -> None:
    guard = the(planned(SetWeight(D2, weight)), "range")
    assert guard.text == f"weight = {weight:g}: must be a finite number, 0 or more"
    assert guard.blocks
    assert not guard.override


# power_of_two.


def test_power_of_two_with_one_worker_left() -> None:
    made = planned(Drain((D1, D2)))
    guard = the(made, "power_of_two")
    assert not guard.blocks
    assert guard.text == (
        "after a restart of the router: smg refuses to start with power_of_two and fewer than 2 decode "
        "workers: the command line would have 1 (2 drained)"
    )
    assert "power_of_two" not in kinds(planned(Drain((D1,))))
    assert "power_of_two" not in kinds(planned(Drain((D1, D2)), engines=OWN))


@pytest.mark.parametrize("engines", [SMG, SGLANG])
def test_power_of_two_chosen_for_one_worker(engines: dict[str, str]) -> None:
    config = CONFIG.replace(f'["{P1}", "{P2}"]', f'["{P1}"]')
    made = planned(SetValue(("prefill", "policy"), '"power_of_two"'), config=config, engines=engines)
    guard = the(made, "power_of_two")
    assert guard.blocks
    assert not guard.override
    assert guard.to_change == "choose another policy, or add a worker first"
    assert "power_of_two" not in kinds(
        planned(SetValue(("prefill", "policy"), "power_of_two"), config=config, engines=OWN)
    )


def test_a_policy_that_this_router_does_not_have() -> None:
    made = planned(SetValue(("decode", "policy"), "least_load"), engines=SGLANG)
    guard = the(made, "range")
    assert guard.blocks
    assert guard.text == (
        "sglang-router has no decode policy least_load; "
        "it has random, round_robin, cache_aware, power_of_two, manual"
    )
    assert "range" not in kinds(planned(SetValue(("decode", "policy"), "least_load"), engines=SMG))


def test_a_policy_that_does_not_do_what_it_says() -> None:
    made = planned(SetValue(("decode", "policy"), "cache_aware"), engines=SGLANG)
    assert "picks at random" in the(made, "no_effect").text
    assert allowed(made)


# Values.

SHARE = "valid: 0 to 1, default 0.3"


@pytest.mark.parametrize(
    ("path", "typed", "kind", "text", "to_change"),
    [
        (
            "prefill.cache_aware_threshold",
            "30",
            "range",
            "prefill.cache_aware_threshold = 30: must be between 0 and 1 (a share)",
            f"{SHARE}; did you mean 0.30?",
        ),
        (
            "prefill.cache_aware_threshold",
            "-0.1",
            "range",
            "prefill.cache_aware_threshold = -0.1: must be 0 or more",
            SHARE,
        ),
        (
            "prefill.cache_aware_threshold",
            "nan",
            "range",
            "prefill.cache_aware_threshold = nan: must be a finite number (not nan or inf)",
            SHARE,
        ),
        (
            "prefill.cache_aware_threshold",
            '"0.4"',
            "range",
            'prefill.cache_aware_threshold = "0.4": must be a number, not text',
            f"{SHARE}; did you mean 0.4?",
        ),
        (
            "prefill.cache_aware_threshold",
            "true",
            "range",
            "prefill.cache_aware_threshold = true: must be a number, not a bool",
            SHARE,
        ),
        (
            "prefill.cache_aware_threshold",
            "0,4",
            "range",
            'prefill.cache_aware_threshold: 0,4 is not a TOML value; text needs quotes: "0,4"',
            f"{SHARE}; did you mean 0.4?",
        ),
        (
            "prefill.cache_aware_threshold",
            "30 %",
            "range",
            'prefill.cache_aware_threshold: 30 % is not a TOML value; text needs quotes: "30 %"',
            f"{SHARE}; did you mean 0.30?",
        ),
        (
            "prefill.cache_aware_treshold",
            "0.4",
            "unknown_key",
            "prefill.cache_aware_treshold = 0.4: is not a known key and has no effect",
            "did you mean cache_aware_threshold?",
        ),
        (
            "prefill.cache-aware-threshold",
            "0.4",
            "unknown_key",
            "prefill.cache-aware-threshold = 0.4: is not a known key and has no effect",
            "did you mean cache_aware_threshold?",
        ),
        (
            "prefill.interval_secs",
            "4",
            "unknown_key",
            "prefill.interval_secs = 4: is not a known key and has no effect",
            "it belongs to [health] or [console]",
        ),
        (
            "prefill.zzz",
            "4",
            "unknown_key",
            "prefill.zzz = 4: is not a known key and has no effect",
            "`pdtop config show` lists all keys",
        ),
        (
            "health.unhealthy_threshold",
            "2.0",
            "range",
            "health.unhealthy_threshold = 2.0: must be a whole number, not a number with a fraction",
            "valid: a whole number, 1 or more, default 3; did you mean 2?",
        ),
        (
            "server.api_key",
            '"sk-abcdefgh123"',
            "secret_in_file",
            "server.api_key = ••••••: a literal key or password stands in the file",
            "put it in an environment variable, name that in api_key_env, and change the key",
        ),
    ],
)
def test_values_that_the_file_must_not_say(
    path: str, typed: str, kind: str, text: str, to_change: str
) -> None:
    made = planned(SetValue(tuple(path.split(".")), typed))
    assert made.guards == (Guard(kind, text, to_change),)
    assert made.refusal is not None
    assert (made.edits, made.steps, made.rows) == ((), (), ())


def test_values_that_do_not_fit_together_are_a_warning() -> None:
    made = planned(SetValue(("prefill", "cache_aware_threshold"), "0.9"), engines=OWN)
    assert the(made, "config") == Guard(
        "config",
        "prefill.cache_aware_threshold = 0.9: "
        "cache_aware_threshold (0.9) is above load_balance_threshold (0.7)",
        "valid: 0 to 1, default 0.3; keep it at or below",
        blocks=False,
    )
    assert allowed(made)


# The file.


def test_without_a_file() -> None:
    for request_ in (Drain((D1,)), SetValue(("slo", "ttft_p99_ms"), "500"), Apply(), Undo()):
        made = planned(request_, config=None)
        assert made.guards == (
            Guard(
                "no_config",
                "there is no config.toml: a change has nowhere to last",
                "`pdtop config init --from http://router:30000 > config.toml`, then `pdtop config.toml`",
            ),
        )


def test_a_file_that_is_no_toml() -> None:
    for request_ in (Drain((D1,)), SetValue(("slo", "ttft_p99_ms"), "500"), Apply()):
        made = planned(request_, config="[decode\n")
        assert kinds(made) == ["broken_config"]
        assert made.refusal is not None
        assert "config.toml line 1" in made.guards[0].text


BROKEN = CONFIG.replace("cache_aware_threshold = 0.30", "cache_aware_threshold = 30")


@pytest.mark.parametrize(
    "request_", [Drain((D1,)), Undrain((D1,)), AddWorker(Role.DECODE, "a:1"), RemoveWorker(D1), Apply()]
)
def test_a_file_with_a_bad_value_changes_no_worker(request_: Request) -> None:
    made = planned(request_, config=BROKEN)
    assert kinds(made) == ["broken_config"]
    assert "cache_aware_threshold = 30" in made.guards[0].text


def test_a_bad_value_can_be_put_right() -> None:
    made = planned(SetValue(("prefill", "cache_aware_threshold"), "0.30"), config=BROKEN, engines=OWN)
    assert made.guards == ()
    assert [one.text for one in made.edits] == ["set prefill.cache_aware_threshold = 0.30"]
    assert allowed(planned(UnsetValue(("prefill", "cache_aware_threshold")), config=BROKEN))


def test_another_value_of_a_broken_file_leaves_it_broken() -> None:
    made = planned(SetValue(("slo", "ttft_p99_ms"), "500"), config=BROKEN)
    guard = the(made, "broken_config")
    assert guard.text.startswith("saved like this the file is rejected still: config.toml line 7")
    assert not guard.blocks


# Workers that are not there, or are there already.


def test_a_worker_that_has_vanished() -> None:
    made = planned(Drain(("10.0.2.29:30001",)))
    guard = the(made, "vanished")
    assert guard.text == "there is no worker '10.0.2.29:30001' any more"
    assert guard.to_change.startswith("did you mean 10.0.2.2")
    assert made.refusal == guard


def test_a_worker_that_only_the_router_lists() -> None:
    snapshot = cluster(worker("10.0.2.24:30001"))
    for request_ in (
        Drain(("10.0.2.24:30001",)),
        Undrain(("10.0.2.24:30001",)),
        SetWeight("10.0.2.24:30001", 2),
    ):
        assert planned(request_, snapshot).guards == (
            Guard(
                "not_in_config",
                "10.0.2.24:30001 is not in config.toml: only the router lists it",
                "add it first: `pdtop add decode 10.0.2.24:30001`",
            ),
        )
    made = planned(RemoveWorker("10.0.2.24:30001"), snapshot)
    assert made.guards[0].to_change == "`pdtop apply --prune` takes workers out that the file does not name"


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (D1, f"{D1} is in decode.workers already"),
        (f"HTTP://{D1}/", f"{D1} is in decode.workers already as {D1}"),
        (P1, f"{P1} is in prefill.workers already"),
    ],
)
def test_adding_what_is_there(address: str, text: str) -> None:
    made = planned(AddWorker(Role.DECODE, address))
    assert the(made, "exists") == Guard("exists", text)
    assert made.refusal is not None


def test_adding_a_drained_one_is_no_undrain() -> None:
    made = planned(AddWorker(Role.DECODE, D3), config=CONFIG + "drain = true\n")
    assert the(made, "exists").to_change == "to bring a drained worker back: undrain"


@pytest.mark.parametrize(
    ("address", "port", "kind", "words"),
    [
        ("", None, "range", "the address is empty"),
        ("10.0.2:30001", None, "range", "10.0.2 is not an IPv4 address"),
        ("10.0.2.24:99999", None, "range", "the port must be a number from 1 to 65535"),
        ("http://me:secret@10.0.2.24:30001", None, "secret_in_file", "a password must not stand in the file"),
        ("10.0.2.24:30001", 0, "range", "0 is not a port"),
        ("grpc://10.0.2.24:30001", None, "range", "only http:// and https:// addresses can be read"),
    ],
)
def test_addresses_that_cannot_be_added(address: str, port: int | None, kind: str, words: str) -> None:
    made = planned(AddWorker(Role.DECODE, address, port))
    guard = the(made, kind)
    assert words in guard.text
    assert "secret" not in guard.text
    assert made.refusal is not None
    assert made.edits == ()


def test_adding_one_that_does_another_job() -> None:
    made = planned(
        AddWorker(Role.DECODE, "10.0.1.13:30001"), cluster(worker("10.0.1.13:30001", Role.PREFILL))
    )
    assert the(made, "role").text == "10.0.1.13:30001 is a prefill worker, not decode"
    assert allowed(made)


# Work, routers, coming back.


def test_removing_one_that_works() -> None:
    snapshot = cluster(worker(D2, running=14.0, backlog=waits(transfer=13.0)))
    assert the(planned(RemoveWorker(D2), snapshot), "has_work") == Guard(
        "has_work",
        f"{D2} still has 27 requests",
        "drain it first and wait until it is empty",
        override=D2,
    )
    idle = cluster(worker(D2, running=0.0))
    assert planned(RemoveWorker(D2), idle).guards == ()
    gone = cluster(worker(D2, state=State.REFUSED, usable=False))
    guard = the(planned(RemoveWorker(D2), gone), "has_work")
    assert guard.text == f"whether {D2} still has work is not known"
    assert not guard.blocks


def test_a_router_that_does_not_answer() -> None:
    down_router = router(state=State.REFUSED, reason="connection refused", fix="is it up?")
    made = planned(Drain((D2,)), cluster(routers=[down_router]))
    assert the(made, "router") == Guard(
        "router", "r does not answer (connection refused): it is told when it is back", "is it up?", False
    )
    assert planned(SetValue(("slo", "ttft_p99_ms"), "500"), cluster(routers=[down_router])).guards == ()


def test_a_router_that_refuses_the_key() -> None:
    refuses = router(state=State.AUTH, reason="401", fix="put the key in PDTOP_ADMIN_KEY")
    made = planned(Drain((D2,)), cluster(routers=[refuses]))
    assert the(made, "router") == Guard("router", "r refuses the key: 401", "put the key in PDTOP_ADMIN_KEY")
    assert made.refusal is not None
    two = planned(Drain((D2,)), cluster(routers=[refuses]), engines={"r": "smg", "s": "smg"})
    assert two.overrides == ("r",)


def test_no_router_at_all() -> None:
    made = planned(Drain((D2,)), engines={})
    assert the(made, "router").text == "no router is watched: config.toml is changed and nothing else"
    assert not the(made, "router").blocks


@pytest.mark.parametrize("engine", ["unknown", "vllm-router"])
def test_a_router_that_cannot_be_told(engine: str) -> None:
    made = planned(Drain((D2,)), engines={"r": engine})
    guard = the(made, "router")
    name = "a router that is not known" if engine == "unknown" else engine
    assert guard.text == f"{name} cannot be told who is in its pools: it goes on as it is"
    assert not guard.blocks


def test_settings_that_need_a_restart_or_do_nothing() -> None:
    threshold = SetValue(("prefill", "cache_aware_threshold"), "0.4")
    assert kinds(planned(threshold, engines=SMG)) == ["needs_restart"]
    assert kinds(planned(threshold, engines=SGLANG)) == ["no_effect"]
    assert kinds(planned(threshold, engines=OWN)) == []
    both = planned(threshold, engines={"a": "smg", "b": "sglang-router"})
    assert kinds(both) == ["needs_restart", "no_effect"]
    assert [g.text.partition(":")[0] for g in both.guards] == ["smg", "sglang-router"]


def test_coming_back() -> None:
    config = CONFIG + f'drain = true\n[prefill.worker."{P2}"]\ndrain = true\n'
    silent = worker(D3, usable=False, state=State.TIMEOUT, reason="no answer in 2 s", fix="look at it")
    assert planned(Undrain((D3,)), cluster(silent), config).guards == (
        Guard(
            "unreachable",
            f"{D3} does not answer (no answer in 2 s): it gets no work until it does",
            "look at it",
            False,
        ),
    )
    assert planned(Undrain((D3,)), cluster(), config).guards == ()
    portless = the(planned(Undrain((P2,)), cluster(), config), "bootstrap_port")
    assert portless.text == f"no bootstrap port is known for prefill worker {P2}"
    assert not portless.blocks
    for snapshot, remembered in (
        (cluster(worker(P2, Role.PREFILL, identity=Identity(bootstrap_port=8998))), {}),
        (cluster(worker(P2, Role.PREFILL, opinions=(opinion(bootstrap_port=8998),))), {}),
        (cluster(), {P2: WorkerSpec(f"http://{P2}", Role.PREFILL, bootstrap_port=8998)}),
    ):
        assert planned(Undrain((P2,)), snapshot, config, remembered=remembered).guards == ()
