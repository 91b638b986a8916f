"""Findings about one worker against its pool, the targets, and how findings last."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from pdtop.cluster.model import Finding, Identity, Role, Severity, Snapshot, State, Worker
from pdtop.insight.balance import _median_without
from pdtop.insight.findings import HOLD, LINGER, NOTHING, Memory, at_or_above, findings, judge
from tests.insight.scenes import goodput, kinds, latency, one, opinion, scene, waits, worker


def shared(
    *shares: float, requests: float = 2000.0, role: Role = Role.DECODE, **more: object
) -> list[Worker]:
    return [
        worker(f"w{n}", role, share=share, opinions=(opinion(requests=share * requests),), **more)
        for n, share in enumerate(shares)
    ]


def test_a_worker_that_takes_far_more_than_its_share() -> None:
    """Case s13."""
    found = one(scene(*shared(0.6, 0.12, 0.13, 0.15)), "hot_worker")
    assert found.worker == "w0"
    assert "60 %" in found.text
    assert "even share 25 %" in found.evidence


@pytest.mark.parametrize(
    ("shares", "requests"),
    [
        ((0.4, 0.2, 0.2, 0.2), 2000.0),  # uneven, not far more
        ((0.6, 0.12, 0.13, 0.15), 12.0),  # too few to tell
        ((0.5, 0.2, 0.15, 0.15), 40.0),  # within chance
        ((0.5, 0.5), 2000.0),
    ],
)
def test_what_is_not_hot(shares: tuple[float, ...], requests: float) -> None:
    assert "hot_worker" not in kinds(scene(*shared(*shares, requests=requests)))


def test_a_weight_asks_for_its_share() -> None:
    heavy, *others = shared(0.6, 0.2, 0.2)
    assert "hot_worker" not in kinds(scene(replace(heavy, weight=3.0), *others))
    assert "hot_worker" in kinds(scene(heavy, *others))


def test_a_hot_prefill_worker_with_hits_has_its_prefixes_to_blame() -> None:
    """The seed's 62 %: prefix affinity, the others have room."""
    hot, *others = shared(0.62, 0.2, 0.18, role=Role.PREFILL, hit_rate=0.7)
    hot = replace(hot, backlog=waits(queue=9, bootstrap=3))
    found = one(scene(hot, *others), "hot_worker")
    assert found.text == "takes 62 % of prefill: prefix affinity; 2 others without backlog"
    assert found.fix == "lower cache_aware_threshold (leave affinity earlier)"


def test_a_rule_may_know_of_a_longer_time_than_the_memory() -> None:
    given = Finding(Severity.WARNING, "x", "x", since_s=30.0)
    first = judge(CALM, 100.0, given=[given])
    assert [finding.since_s for finding in first.findings] == [30.0]
    later = judge(CALM, 105.0, first.memory, given=[replace(given, since_s=None)])
    assert [finding.since_s for finding in later.findings] == [35.0]


def test_a_draining_worker_does_not_make_the_others_hot() -> None:
    first, second, third = shared(0.5, 0.5, 0.0)
    gone = replace(third, draining=True)
    assert "hot_worker" not in kinds(scene(first, second, gone))


def failing(key: str, rate: float, requests: float = 100.0) -> Worker:
    return worker(key, opinions=(opinion(requests=requests, failure_rate=rate),))


def test_a_worker_that_fails_far_more_than_the_others() -> None:
    found = one(scene(failing("a", 0.36), failing("b", 0.02), failing("c", 0.0)), "failing_requests")
    assert (found.worker, found.severity) == ("a", Severity.WARNING)
    assert "fails 36 % of its requests" in found.text
    assert one(scene(failing("a", 0.9), failing("b", 0.0)), "failing_requests").severity is Severity.CRITICAL


@pytest.mark.parametrize("rates", [(0.3, 0.3, 0.3), (0.04, 0.0, 0.0), (0.0, 0.0, 0.0)])
def test_failures_that_all_share_or_that_are_few(rates: tuple[float, ...]) -> None:
    assert kinds(scene(*(failing(str(n), rate) for n, rate in enumerate(rates)))) == []


def test_two_failures_are_no_pattern() -> None:
    assert kinds(scene(failing("a", 0.5, requests=4.0), failing("b", 0.0))) == []


def test_the_worker_that_moved() -> None:
    workers = [worker(f"d{n}", tpot=latency("tpot", 0.02)) for n in range(3)]
    slow = worker("slow", tpot=latency("tpot", 0.061))
    found = one(scene(*workers, slow), "slow_worker")
    assert found.worker == "slow"
    assert found.text == "slow: TPOT p50 61 ms, 3.0 times the others (20 ms)"


def test_slow_needs_samples_company_and_a_difference_that_hurts() -> None:
    pool = [worker(f"d{n}", tpot=latency("tpot", 0.02)) for n in range(2)]
    few = worker("slow", tpot=latency("tpot", 0.061, count=7))
    assert "slow_worker" not in kinds(scene(*pool, few))
    assert "slow_worker" not in kinds(scene(pool[0], worker("slow", tpot=latency("tpot", 0.061))))
    fast = [worker(f"d{n}", tpot=latency("tpot", 0.001)) for n in range(2)]
    assert "slow_worker" not in kinds(scene(*fast, worker("slow", tpot=latency("tpot", 0.003))))


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_the_median_of_the_others_is_that_of_a_list_without_the_one(count: int) -> None:
    numbers = [float(n * n) for n in range(count)]
    for index, number in enumerate(numbers):
        assert _median_without(numbers, number) == median(numbers[:index] + numbers[index + 1 :])


def test_prefill_workers_are_compared_by_queue_time_not_by_their_ttft() -> None:
    pool = [worker(f"p{n}", Role.PREFILL, queue_time=latency("q", 0.1)) for n in range(3)]
    slow = worker("slow", Role.PREFILL, queue_time=latency("q", 0.9), ttft=latency("ttft", 9.0))
    assert "queue time p50 900 ms, 9.0 times the others" in one(scene(*pool, slow), "slow_worker").text
    idle = [worker(f"p{n}", Role.PREFILL, queue_time=latency("q", 0.0001)) for n in range(3)]
    assert one(scene(*idle, slow), "slow_worker").text == "slow: queue time p50 900 ms, the others 0.10 ms"


def test_restarts_are_told() -> None:
    found = one(scene(worker(resets=2)), "restart")
    assert "2 restarts" in found.evidence


def test_versions_and_models_of_a_pool_are_to_be_equal() -> None:
    same = [worker(f"d{n}", identity=Identity(version="0.5.23", model="m")) for n in range(2)]
    other = worker("odd", identity=Identity(version="0.5.22", model="m"))
    assert one(scene(*same, other), "version_mismatch").text == "version 0.5.22, the pool has 0.5.23"
    unlike = worker("odd", identity=Identity(version="0.5.23", model="other"))
    assert one(scene(*same, unlike), "model_mismatch").worker == "odd"
    silent = worker("odd", identity=Identity())
    prefill = worker("p", Role.PREFILL, identity=Identity(version="0.5.22", model="m"))
    assert kinds(scene(*same, silent, prefill)) == []


def test_targets_that_are_missed() -> None:
    snapshot = scene(worker(), goodput=goodput(0.7, 0.99), ttft=latency("ttft", 1.2))
    found = one(snapshot, "slo_ttft")
    assert found.text == "only 70 % within the TTFT target of 800 ms"
    assert "1.21 s (from decode)" in found.evidence
    assert "slo_tpot" not in kinds(snapshot)


# Over time


def test_worst_first_and_what_explains_most_before_the_rest() -> None:
    snapshot = scene(
        worker("p", Role.PREFILL, backlog=waits(queue=0, bootstrap=34)),
        worker("d", kv_use_worst=0.8, backlog=waits(queue=0, prealloc=34, transfer=0)),
        worker("gone", state=State.REFUSED, usable=False),
        worker("odd", state=State.PARTIAL),
    )
    assert kinds(snapshot) == ["down", "bottleneck", "kv_pressure", "bootstrap_backlog", "partial"]


STALLED = scene(worker(ttft=latency("ttft", 0.2, 0), backlog=waits(queue=0, prealloc=0, transfer=5)))
CALM = scene(worker())
RESTARTED = scene(worker(resets=1))


def told(*story: tuple[float, Snapshot]) -> list[list[str]]:
    """Kinds told at each moment of a story."""
    memory: Memory = NOTHING
    heard: list[list[str]] = []
    for now, snapshot in story:
        judgement = judge(snapshot, now, memory)
        memory = judgement.memory
        heard.append([finding.kind for finding in judgement.findings])
    return heard


def test_a_kind_that_would_cry_wolf_has_to_last_first() -> None:
    hold = HOLD["transfer_stalled"]
    assert told((0.0, STALLED), (hold - 1, STALLED), (hold, STALLED)) == [[], [], ["transfer_stalled"]]
    assert told((0.0, STALLED), (5.0, CALM), (hold, STALLED)) == [[], [], []]


def test_a_finding_stays_a_little_so_that_it_does_not_flicker() -> None:
    linger = LINGER["restart"]
    assert told((0.0, RESTARTED), (linger, CALM), (linger + 1, CALM)) == [["restart"], ["restart"], []]


def test_a_finding_without_a_linger_goes_at_once() -> None:
    dead = scene(worker(state=State.REFUSED, usable=False))
    assert told((0.0, dead), (1.0, CALM)) == [["no_usable_worker", "down"], []]


def test_findings_of_a_worker_that_is_no_longer_watched_go_with_it() -> None:
    assert told((0.0, RESTARTED), (1.0, scene(worker("other")))) == [["restart"], []]


def test_how_long_it_has_lasted_is_said() -> None:
    dead = scene(worker(state=State.REFUSED, usable=False))
    first = judge(dead, 10.0)
    second = judge(dead, 24.0, first.memory)
    assert [finding.since_s for finding in first.findings] == [0.0, 0.0]
    assert [finding.since_s for finding in second.findings] == [14.0, 14.0]


def test_given_findings_are_taken_in() -> None:
    given = Finding(Severity.WARNING, "secret_in_file", "a key stands in the file")
    assert findings(CALM, given=[given]) == (given,)


def test_severities_are_ordered() -> None:
    assert at_or_above(Severity.CRITICAL, Severity.WARNING)
    assert at_or_above(Severity.WARNING, Severity.WARNING)
    assert not at_or_above(Severity.INFO, Severity.WARNING)
