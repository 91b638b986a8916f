"""What the console concludes from moments of really running clusters."""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Role, Severity, State
from tests.cluster.captures import moments, snapshot_of

R32 = "sglang-0.5.23+sglang-router-0.3.2"
SMG = "sglang-0.5.23+smg-1.13.0"
OLD = "sglang-0.5.6+sglang-router-0.3.2"

#: Findings of warning or worse, as (kind, worker).
FINDINGS: dict[str, set[tuple[str, str | None]]] = {
    f"{R32}/2p2d-idle": set(),
    f"{R32}/2p2d-load": set(),
    f"{R32}/2p2d-transfer-failures": set(),
    f"{R32}/1p1d-decode-pool-full": {
        ("bottleneck", None),
        ("kv_pressure", "decode0"),
        ("bootstrap_backlog", "prefill0"),
    },
    f"{R32}/2p2d-saturated": {
        ("bottleneck", None),
        ("kv_pressure", "decode0"),
        ("bootstrap_backlog", "prefill0"),
        ("bootstrap_backlog", "prefill1"),
    },
    f"{R32}/2p2d-decode0-scheduler-hung": {
        ("no_usable_worker", None),
        ("frozen", "decode0"),
        ("dead_but_routed", "decode0"),
        ("breaker_open", "decode1"),
        ("breaker_open", "prefill0"),
    },
    f"{R32}/2p2d-prefill0-hung": {("down", "prefill0"), ("breaker_open", "decode1")},
    f"{R32}/1p1d-prefill0-scheduler-killed-2s": {
        ("no_usable_worker", None),
        ("down", "prefill0"),
        ("dead_but_routed", "prefill0"),
    },
    f"{R32}/tp2-prefill_dp2-decode-load": set(),
    f"{SMG}/1p1d-idle": set(),
    f"{SMG}/1p1d-load": set(),
    f"{OLD}/1p1d-idle": set(),
    f"{OLD}/1p1d-load": set(),
}


@pytest.mark.parametrize("moment", FINDINGS)
def test_findings(moment: str) -> None:
    snapshot = snapshot_of(moment)
    names = {worker.key: worker.name for worker in snapshot.workers}
    found = {
        (finding.kind, names.get(finding.worker or ""))
        for finding in snapshot.findings
        if finding.severity is not Severity.INFO
    }
    assert found == FINDINGS[moment]


@pytest.mark.parametrize("moment", moments())
def test_every_moment_gives_a_snapshot_with_a_source_for_every_number(moment: str) -> None:
    snapshot = snapshot_of(moment)
    assert {worker.role for worker in snapshot.workers} == {Role.PREFILL, Role.DECODE}
    for worker in snapshot.workers:
        assert bool(worker.source) == (worker.state in (State.OK, State.FROZEN))
    assert snapshot.ttft is not None
    assert snapshot.ttft.source in ("router", "decode")


def test_gauges_that_hang_after_the_load_are_not_believed() -> None:
    """8 s after the last request the pages still say 69 and 32 waiting; /v1/loads says 0."""
    snapshot = snapshot_of(f"{R32}/2p2d-after-load")
    assert [worker.backlog.total for worker in snapshot.pool_workers(Role.DECODE)] == [0, 0]
    assert snapshot.decode.backlog.total == 0


def test_the_routers_own_ttft_is_the_headline_where_there_is_one() -> None:
    by_router, by_workers = snapshot_of(f"{SMG}/1p1d-load").ttft, snapshot_of(f"{R32}/2p2d-load").ttft
    assert by_router is not None
    assert by_workers is not None
    assert (by_router.source, by_router.metric) == ("router", "smg_pd_ttft_seconds")
    assert (by_workers.source, by_workers.metric) == ("decode", "sglang:time_to_first_token_seconds")


def test_streaming_and_whole_answers_are_told_apart() -> None:
    """Non-streaming requests have their first token at the end: mean 0.55 s against 0.28 s."""
    ttft = snapshot_of(f"{R32}/2p2d-load").decode.ttft
    assert ttft is not None
    assert ttft.streaming is not None
    assert ttft.non_streaming is not None
    assert ttft.streaming.mean is not None
    assert ttft.non_streaming.mean is not None
    assert ttft.non_streaming.mean > ttft.streaming.mean


def test_an_idle_old_decode_worker_exports_no_gauges_and_is_not_shown_as_zero() -> None:
    snapshot = snapshot_of(f"{OLD}/1p1d-idle")
    decode = snapshot.pool_workers(Role.DECODE)[0]
    assert decode.running is None
    assert snapshot.decode.running is None
    assert snapshot.decode.running_unknown == 1
