"""The top line, the findings strip and the pool lines, by width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from pdtop.cluster.model import Backlog, Finding, Goodput, Pool, Role, Router, Severity, Snapshot, State
from pdtop.tui import headline
from pdtop.tui.headline import Status, findings_strip, pool_line, top_line, worst_first
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.tones import Line, Tone
from tests.tui import fakes

OPTIONS = ConsoleOptions()
MOMENT = fakes.moment()
LIVE = Status(age_s=1.0, interval_s=1.0)


def words(line: Line) -> str:
    return "".join(w for w, _ in line)


def tone_of(line: Line, part: str) -> Tone:
    return next(t for w, t in line if part in w)


def top(snapshot: Snapshot = MOMENT, status: Status = LIVE, width: int = 120) -> Line:
    return top_line(snapshot, status, OPTIONS, width)


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160, 200])
@pytest.mark.parametrize(
    "snapshot", [fakes.moment(), fakes.hostile(), fakes.all_down(), fakes.waiting(), fakes.empty()]
)
def test_the_top_line_fills_its_width_and_keeps_age_and_mode(snapshot: Snapshot, width: int) -> None:
    said = words(top(snapshot, width=width))
    assert cell_len(said) == width
    assert "READ-ONLY" in said


def test_the_top_line_says_more_where_there_is_room() -> None:
    assert " ".join(words(top(width=80)).split()) == (
        "prod-a smg ● 3P 3/4D TTFT p99 873ms TPOT p99 49ms 97.2% 1s ▏READ-ONLY"
    )
    assert " ".join(words(top(width=200)).split()) == (
        "prod-a smg 1.13.0 ● ready 3P 3/4D TTFT p50 223ms p99 873ms router "
        "TPOT p50 21ms p99 49ms goodput 97.2% 1s ago every 1s ▏READ-ONLY"
    )


def test_paused_armed_and_late_are_seen() -> None:
    paused = top(status=Status(paused_s=14.0, age_s=20.0))
    assert "PAUSED 14s" in words(paused)
    assert tone_of(paused, "PAUSED") is Tone.PAUSED
    armed = top(status=Status(age_s=1.0, read_only=False))
    assert "ARMED prod-a" in words(armed)
    assert "READ-ONLY" not in words(armed)
    assert tone_of(top(status=Status(age_s=11.0)), "11s") is Tone.WARNING
    assert tone_of(top(status=Status(age_s=64.0)), "1m04s") is Tone.CRITICAL
    assert "no data" in words(top(fakes.empty(), Status()))


@pytest.mark.parametrize(
    ("changes", "said", "tone"),
    [
        ({"ready": True}, "● ready", Tone.OK),
        ({"ready": None}, "?", Tone.MUTED),
        ({"ready": False}, "✖ not ready", Tone.CRITICAL),
        ({"state": State.TIMEOUT, "ready": False}, "✖ timeout", Tone.CRITICAL),
    ],
)
def test_the_router_is_shown_as_it_is(changes: dict[str, object], said: str, tone: Tone) -> None:
    router = replace(MOMENT.routers[0], **changes)  # type: ignore[arg-type]
    line = top(replace(MOMENT, routers=(router,)), width=200)
    assert tone_of(line, said) is tone


def test_of_several_routers_the_worst_is_named() -> None:
    bad = Router("b", "http://b", "sglang-router", "0.3.2", State.REFUSED)
    said = words(top(replace(MOMENT, routers=(MOMENT.routers[0], bad)), width=200))
    assert "sglang-router 0.3.2 ×2 ✖ refused" in said


def test_a_pool_without_a_usable_worker_is_critical_also_in_the_top_line() -> None:
    line = top(fakes.all_down())
    assert tone_of(line, "0/3P") is Tone.CRITICAL


def test_unknown_latencies_are_dashes() -> None:
    bare = replace(MOMENT, ttft=None, tpot=None, goodput=Goodput(0.8, 0.05, None, None))
    assert "TTFT p50 – p99 –   TPOT p50 – p99 –   goodput –" in words(top(bare, width=200))


# Findings ------------------------------------------------------------------------------------------------


def test_findings_go_worst_first_and_keep_their_order_within() -> None:
    mixed = (
        Finding(Severity.INFO, "a", "a"),
        Finding(Severity.CRITICAL, "b", "b"),
        Finding(Severity.WARNING, "c", "c"),
        Finding(Severity.CRITICAL, "d", "d"),
    )
    assert [f.kind for f in worst_first(mixed)] == ["b", "d", "c", "a"]


def test_the_strip_says_sign_whom_what_since_and_how_many_more() -> None:
    lines = [words(line) for line in findings_strip(MOMENT, 2, 120)]
    assert lines[0].startswith(" ▲ D 10.0.2.22:30001  KV transfer stalled: 12 waiting for KV")
    assert lines[0].endswith("for 14s")
    assert lines[1].startswith(" ▲ P 10.0.1.11:30001  takes 62 %")
    assert lines[1].rstrip().endswith("1 more  f findings")
    assert [cell_len(line) <= 120 for line in lines] == [True, True]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("height", [1, 2, 4])
def test_the_strip_fits_whatever_it_says(width: int, height: int) -> None:
    for snapshot in (fakes.hostile(), fakes.all_down(), fakes.calm(), fakes.empty(), fakes.waiting()):
        lines = findings_strip(snapshot, height, width)
        assert len(lines) <= height
        assert all(cell_len(words(line)) <= width for line in lines)


def test_a_broken_config_is_the_first_line_and_red() -> None:
    lines = findings_strip(replace(MOMENT, config_error="config.toml:12: policy: no such policy"), 3, 120)
    assert words(lines[0]) == " ✖ config.toml:12: policy: no such policy"
    assert tone_of(lines[0], "policy") is Tone.CRITICAL
    (bare,) = findings_strip(replace(MOMENT, config_error="line 12: no such policy"), 1, 120)
    assert words(bare) == " ✖ config.toml  line 12: no such policy"


def test_calm_says_so_but_only_when_somebody_has_answered() -> None:
    assert words(findings_strip(fakes.calm(), 2, 80)[0]) == " ✓ nothing wrong"
    assert words(findings_strip(fakes.waiting(), 2, 80)[0]) == ""


def test_pool_and_router_findings_say_whom_they_are_about() -> None:
    def whose(**changes: object) -> str:
        return headline.whose(Finding(Severity.WARNING, "k", "t", **changes), MOMENT)  # type: ignore[arg-type]

    assert whose(pool=Role.DECODE) == "decode pool"
    assert whose(router="router-0") == "router-0"
    assert whose(worker="unknown:1", pool=Role.PREFILL) == "P unknown:1"
    assert whose() == ""


# Pools ---------------------------------------------------------------------------------------------------


def test_pool_lines() -> None:
    assert words(pool_line(MOMENT.prefill, 80)) == (
        " P 3/3  run 9  backlog 14 (9+5)  infl 11  41.2k tok/s  cache_aware 0.30/0.70"
    )
    assert words(pool_line(MOMENT.decode, 200)) == (
        " DECODE 3/4 usable   running 61   backlog 17 (queue 1 · prealloc 2 · transfer 14)   KV 51%   "
        "9.8k tok/s   1 draining   power_of_two"
    )


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_pool_lines_fit(width: int) -> None:
    for snapshot in (fakes.moment(), fakes.all_down(), fakes.waiting(), fakes.empty()):
        for pool in (snapshot.prefill, snapshot.decode):
            assert cell_len(words(pool_line(pool, width))) <= width


def test_unknown_parts_and_workers_make_lower_bounds() -> None:
    pool = Pool(
        Role.DECODE, 4, 2, usable_unknown=2, running=30.0, running_unknown=2,
        backlog=Backlog(12.0, True, {"queue": 0.0, "prealloc": None, "transfer": 12.0}),
    )  # fmt: skip
    said = words(pool_line(pool, 200))
    assert "≥2/4 usable" in said
    assert "running ≥30" in said
    assert "backlog ≥12 (queue 0 · prealloc ? · transfer 12)" in said
    unknown = words(pool_line(Pool(Role.DECODE, 4, 0, usable_unknown=4), 200))
    assert "?/4" in unknown
    assert "running –" in unknown
