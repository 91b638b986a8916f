"""Load: the router's own count at once, the workers' reports when fresh, no request counted twice."""

from __future__ import annotations

from typing import Any

import pytest

from pdtop.config.schema import LoadWeights
from pdtop.gateway.health import Probes
from pdtop.gateway.loads import FRESH_S, Report, load_of, read_report
from pdtop.gateway.pool import Backend


def report(
    running: float = 0, waiting: float = 0, ours: int = 0, pending: float = 0, kv: float | None = None
) -> Report:
    return Report(0.0, running, waiting, pending, kv, behind_s=0.0, ours=ours)


@pytest.mark.parametrize(
    ("measure", "inflight", "tokens", "said", "load"),
    [
        ("requests", 3, 9000, report(running=50), 3.0),
        ("running_waiting", 3, 9000, None, 3.0),
        ("running_waiting", 3, 9000, report(running=3, ours=3), 3.0),  # it counts ours
        ("running_waiting", 3, 9000, report(running=5, waiting=2, ours=3), 7.0),  # four are others'
        ("running_waiting", 3, 9000, report(running=1, ours=3), 3.0),  # it has not seen all of ours yet
        ("running_waiting", 1, 9000, report(running=4, ours=4), 1.0),  # three of ours have ended since
        ("tokens", 3, 9000, None, 12.0),
        ("tokens", 3, 9000, report(running=3, ours=3, kv=0.5), 17.0),
        ("tokens", 0, 0, report(pending=4000), 4.0),
        ("tokens", 1, 5000, report(pending=4000), 6.0),  # pending: ours or more
    ],
)
def test_load(measure: str, inflight: int, tokens: float, said: Report | None, load: float) -> None:
    weights = LoadWeights.model_validate({"measure": measure})
    assert load_of(weights, inflight, tokens, said) == load


def test_load_weights() -> None:
    weights = LoadWeights.model_validate(
        {"measure": "tokens", "running": 1.0, "backlog": 3.0, "per_1000_tokens": 0.5, "kv_use": 2.0}
    )
    # 6 requests, 2 of them wait: 4 + 6; 8000 tokens: 4; half full: 1
    assert load_of(weights, 5, 8000, report(running=4, waiting=2, ours=5, kv=0.5)) == 15.0


def rank(**more: Any) -> dict[str, Any]:
    base = {"timestamp": 1767225599.5, "num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.4}
    return {**base, **more}


def test_reading_a_report_adds_its_ranks() -> None:
    section = {"prefill_inflight_queue_reqs": 5}
    body = {
        "timestamp": "2026-01-01T00:00:00+00:00",
        "loads": [rank(), rank(token_usage=0.6, disaggregation=section, num_waiting_uncached_tokens=70)],
    }
    found = read_report(body, at=7.0)
    assert found is not None
    assert (found.at, found.running, found.waiting, found.pending_tokens) == (7.0, 4, 7, 70)
    assert found.kv_use == pytest.approx(0.5)
    assert found.behind_s == pytest.approx(0.5)
    assert not found.stuck


def test_a_rank_whose_clock_stands_still_is_stuck() -> None:
    body = {"timestamp": "2026-01-01T00:00:00+00:00", "loads": [rank(), rank(timestamp=1767225591.0)]}
    found = read_report(body, at=0.0)
    assert found is not None
    assert found.stuck


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"loads": 3},
        {"loads": []},
        {"loads": [{"timestamp": 0.0, "num_running_reqs": 0}]},  # never reported
        {"loads": ["x"]},
    ],
)
def test_no_report(body: object) -> None:
    assert read_report(body, 0.0) is None


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), -1, True, "9", None, 1e300])
def test_hostile_numbers_count_nothing(hostile: object) -> None:
    found = read_report({"timestamp": "x", "loads": [rank(num_running_reqs=hostile)]}, 0.0)
    assert found is not None
    assert (found.running, found.waiting) == (0, 1)


def test_what_may_be_ours_is_the_most_we_had_while_the_report_was_made() -> None:
    one = Backend("http://d:1", "decode", Probes(3, 2))
    weights = LoadWeights()
    legs = [one.begin(0, 0.0) for _ in range(5)]
    for leg in legs[1:]:
        one.end(leg, True, 0.0)
    one.reported(report(running=7))  # still with the four that have just ended
    assert one.load(weights, 0.0) == 1 + 2
    for at in range(1, 4):
        one.reported(Report(float(at), 3, 0, 0, None, 0.0))
    assert one.load(weights, 3.0) == 1 + 2
    assert one.load(weights, 3.1 + FRESH_S) == 1  # old: our own count alone
    one.reported(None)
    assert one.load(weights, 3.0) == 1
