"""The demo's scenarios as data, and that each one's trouble shows in virtual time within 20 seconds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pdtop.config.load import load
from pdtop.gateway.policies import POLICIES, Ask, Candidate, Rules
from pdtop.gateway.prefixes import PrefixTree, block_names
from pdtop.simulator.demo import Place, Running, config_text
from pdtop.simulator.engine import Gauges
from pdtop.simulator.prefill import PrefillEngine
from pdtop.simulator.scenarios import SCENARIOS, Plan, Scenario, later, plan
from pdtop.simulator.traffic import arrivals
from pdtop.simulator.virtual import VirtualCluster, VirtualWorker, least_loaded, request_of

END_S = 20.0


def play(scenario: Scenario) -> tuple[VirtualCluster, Plan]:
    """The scenario's first seconds, its faults at their times, with its own prefill policy."""
    wanted = plan(scenario, 3, 4, None, seed=0)
    c = VirtualCluster.make([*wanted.prefill, *wanted.decode])
    everyone = [*c.prefill, *c.decode]
    turns = [0.0, 0.0, 0.0]
    trees = [PrefixTree() for _ in turns]
    rules = Rules(
        wanted.cache_aware_threshold, wanted.load_balance_threshold, affinity_guard=wanted.affinity_guard
    )
    dice = random.Random(0)
    faults = sorted(
        (fault.at, fault.kind, fault.value, index)
        for index, worker in enumerate(everyone)
        for fault in worker.spec.faults
        if fault.kind != "die"
    )
    for number, arrival in enumerate(arrivals(wanted.traffic, 0)):
        if arrival.at > END_S:
            break
        while faults and faults[0][0] <= arrival.at:
            at, kind, value, index = faults.pop(0)
            c.run_until(at)
            inflict(everyone[index], kind, value)
        c.run_until(arrival.at)
        names = block_names(arrival.prompt)
        candidates = [
            Candidate(str(i), float(w.load), turn=turns[i], matched=trees[i].matched(names))
            for i, w in enumerate(c.prefill)
        ]
        ask = Ask((dice.random(), dice.random()), arrival.prompt)
        chosen = POLICIES[wanted.prefill_policy](candidates, ask, rules).chosen
        turns[int(chosen.url)] += 1
        trees[int(chosen.url)].add(names)
        c.submit(request_of(arrival, str(number), number), c.prefill[int(chosen.url)], least_loaded(c.decode))
    c.run_until(END_S)
    return c, wanted


def inflict(worker: VirtualWorker, kind: str, value: float) -> None:
    for engine in worker.engines:
        if kind == "hang":
            engine.frozen = True
        elif kind == "slow":
            engine.slow = value
        elif isinstance(engine, PrefillEngine):
            engine.transfer_slow = value


def gauges(workers: Sequence[VirtualWorker]) -> list[Gauges]:
    return [w.engines[0].gauges(END_S) for w in workers]


def tpot(worker: VirtualWorker) -> float:
    recent = [v for at, v in worker.telemetry.truth.tpot if at > END_S - 8]
    return max(recent, default=0.0)


def test_steady_is_calm() -> None:
    c, _ = play("steady")
    assert all(g.queue <= 3 for g in gauges(c.prefill))
    assert all(g.prealloc == 0 and 0.02 < g.usage < 0.6 for g in gauges(c.decode))
    assert all(0.015 < tpot(w) < 0.03 for w in c.decode)
    ttft = sorted(v for w in c.decode for _, v in w.telemetry.truth.ttft)
    assert ttft[len(ttft) // 2] < 0.4


def test_burst_makes_queues_and_long_steps() -> None:
    c, _ = play("burst")
    steady, _ = play("steady")
    assert max(map(tpot, c.decode)) > 1.2 * max(map(tpot, steady.decode))


def test_hot_prefix_loads_one_prefill_worker() -> None:
    c, _ = play("hot-prefix")
    waiting = sorted(g.queue + g.bootstrap for g in gauges(c.prefill))
    assert waiting[2] > 20
    assert waiting[1] <= 5


def test_slow_decode_is_one_worker() -> None:
    c, _ = play("slow-decode")
    times = list(map(tpot, c.decode))
    assert times[3] > 2.5 * max(times[:3])


def test_kv_full_blocks_both_sides_for_want_of_memory() -> None:
    c, _ = play("kv-full")
    assert all(g.usage > 0.6 for g in gauges(c.decode))
    assert sum(g.prealloc for g in gauges(c.decode)) > 20
    assert sum(g.bootstrap for g in gauges(c.prefill)) > 20
    assert sum(g.queue for g in gauges(c.prefill)) <= 5


def test_transfer_stall_shows_as_inflight_of_one_worker() -> None:
    c, _ = play("transfer-stall")
    inflight = [g.inflight for g in gauges(c.prefill)]
    assert inflight[2] > 8
    assert max(inflight[:2]) <= 3
    assert sum(g.transfer for g in gauges(c.decode)) > 8


def test_a_frozen_worker_publishes_nothing_new() -> None:
    c, _ = play("frozen-worker")
    loads = [w.engines[0].reporter.loads for w in c.decode]
    ages = [END_S - load.at for load in loads if load is not None]
    assert ages[3] > 10
    assert max(ages[:3]) < 1.5


def test_only_the_dead_worker_is_alone() -> None:
    victims = {name: plan(name, 3, 4, None, 0).victim for name in SCENARIOS}
    assert {name: v for name, v in victims.items() if v is not None} == {"dead-worker": 3}


def test_trouble_can_begin_later() -> None:
    wanted = plan("slow-decode", 2, 2, None, 0)
    begins = [fault.at for spec in wanted.decode for fault in spec.faults]
    assert [fault.at for spec in later(wanted, 8.0).decode for fault in spec.faults] == [begins[0] + 8.0]
    assert later(plan("steady", 2, 2, None, 0), 8.0) == plan("steady", 2, 2, None, 0)


@pytest.mark.parametrize("engine", ["embedded", "smg"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_config_of_a_scenario_has_no_problems(scenario: Scenario, engine: str, tmp_path: Path) -> None:
    wanted = plan(scenario, 2, 2, 3.0, seed=5)
    assert wanted.traffic.rate >= 3.0
    workers = [
        Place(s.role, f"http://127.0.0.1:{1000 + i}", 2000 + i if s.role == "prefill" else None, site)
        for i, s in enumerate((*wanted.prefill, *wanted.decode))
        for site in [s.prefill.site if s.role == "prefill" else s.decode.site]
    ]
    path = tmp_path / "config.toml"
    running = Running(
        directory=tmp_path,
        config=path,
        engine=engine,
        router="http://127.0.0.1:3000",
        metrics="http://127.0.0.1:3001/metrics",
        status="http://127.0.0.1:3002/supervisor" if engine == "smg" else None,
        truth="http://127.0.0.1:3003/truth",
        workers=tuple(workers),
        scenario=scenario,
        pids={},
    )
    path.write_text(config_text(wanted, running, "/opt/routers/python" if engine == "smg" else None))
    loaded = load(path)
    assert loaded.problems == ()
    assert loaded.config is not None
    server = loaded.config.server
    assert (server.router_url, server.engine) == ("http://127.0.0.1:3000", engine)
    expected = (3002, "/opt/routers/python") if engine == "smg" else (None, None)
    assert (server.status_port, server.engine_python) == expected
    assert loaded.config.prefill.policy in POLICIES
    assert loaded.config.prefill.settings_of("127.0.0.1:1001").bootstrap_port == 2001
    assert loaded.config.decode.workers == ("127.0.0.1:1002", "127.0.0.1:1003")


def test_a_seed_is_a_plan() -> None:
    assert plan("burst", 3, 4, None, 1) == plan("burst", 3, 4, None, 1)
    assert plan("burst", 3, 4, None, 1) != replace(plan("burst", 3, 4, None, 2))
