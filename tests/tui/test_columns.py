"""Columns: exact widths whatever the values, presets that fit, words and tones of cells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from pdtop.cluster.model import (
    Backlog,
    Breaker,
    Finding,
    Health,
    Latency,
    Role,
    RouterOpinion,
    Severity,
    Snapshot,
    State,
    Worker,
)
from pdtop.metrics.distribution import Distribution
from pdtop.tui import columns, judge, rows
from pdtop.tui.columns import COLUMNS, chosen, laid_out, name_width, preset_for
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.pool_view import PoolView, findings_by_worker, pool_view
from pdtop.tui.tones import Line, Tone
from tests.tui import fakes

OPTIONS = ConsoleOptions()
INF = float("inf")


def view_of(snapshot: Snapshot, role: Role, options: ConsoleOptions = OPTIONS) -> PoolView:
    workers = snapshot.pool_workers(role)
    return pool_view(snapshot, role, workers, workers, findings_by_worker(snapshot), options)


MOMENT = fakes.moment()
VIEW = view_of(MOMENT, Role.DECODE)
D = MOMENT.pool_workers(Role.DECODE)
P = MOMENT.pool_workers(Role.PREFILL)


def words(line: Line) -> str:
    return "".join(w for w, _ in line).strip()


def tone(line: Line) -> Tone:
    """Of the last run that says something."""
    return [t for w, t in line if w.strip()][-1]


def cell(column: str, worker: Worker, view: PoolView = VIEW) -> Line:
    return COLUMNS[column].cell(worker, view)


@pytest.mark.parametrize("snapshot", [fakes.moment(), fakes.hostile(), fakes.all_down(), fakes.waiting()])
@pytest.mark.parametrize("column", COLUMNS.values(), ids=lambda c: c.id)
def test_a_cell_is_exactly_as_wide_as_its_column(snapshot: Snapshot, column: columns.Column) -> None:
    for role in (Role.PREFILL, Role.DECODE):
        view = view_of(snapshot, role)
        for worker in view.workers:
            assert cell_len("".join(w for w, _ in column.cell(worker, view))) == column.width


@pytest.mark.parametrize("width", [80, 100, 117, 118, 120, 140, 159, 160, 200])
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_the_preset_for_a_width_fits_it(width: int, role: Role) -> None:
    table = laid_out(chosen(role, preset_for(width), ()), width, 15)
    assert rows.width_of(table) <= width
    assert table[0].id == "name"


def test_spare_room_goes_to_the_sparklines_up_to_a_limit() -> None:
    narrow, wide = (laid_out(chosen(Role.PREFILL, "normal", ()), w, 15) for w in (118, 400))
    trends = ("queue_trend", "tokens_trend")
    assert [c.width for c in wide if c.id in trends] == [columns.MAX_TREND] * 2
    assert all(6 <= c.width < columns.MAX_TREND for c in narrow if c.id in trends)
    assert [c.width for c in narrow if not c.stretch] == [c.width for c in wide if not c.stretch]


def test_columns_from_the_config_go_first_unknown_ones_are_left_out() -> None:
    wanted = ("kv", "no_such", "name", "backlog")
    assert [c.id for c in chosen(Role.DECODE, "normal", wanted)] == ["name", "kv", "backlog"]
    assert columns.unknown_columns(wanted) == ["no_such"]
    assert len(chosen(Role.DECODE, "normal", ("no_such",))) > 3


def test_the_name_column_is_as_wide_as_the_longest_name_within_limits() -> None:
    assert name_width(["10.0.2.21:30001"], "normal") == 15
    assert name_width(["a"], "normal") == 12
    assert name_width(["x" * 99], "narrow") == 17
    assert name_width([], "wide") == 12


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    nobody = Worker("w", "w", Role.DECODE, State.OK)
    for column in COLUMNS.values():
        if column.id in ("name", "state", "weight") or column.stretch:
            continue
        assert words(cell(column.id, nobody)) == "–", column.id
    for trend in ("queue_trend", "tokens_trend", "ttft_trend", "tpot_trend", "backlog_trend"):
        assert words(cell(trend, nobody)) == ""


def test_a_backlog_with_an_unknown_part_is_a_lower_bound() -> None:
    worker = replace(D[1], backlog=Backlog(12.0, True, {"queue": 0.0, "prealloc": None, "transfer": 12.0}))
    assert words(cell("backlog", worker)) == "≥12"
    assert words(cell("backlog_bar", worker)).split() == ["≥12", "███", "0+?+12"]


def test_backlog_says_number_bar_and_parts() -> None:
    assert words(cell("backlog_bar", D[1])).split() == ["13", "███▎", "0+1+12"]
    assert words(cell("backlog_bar", D[0])).split() == ["2", "▌", "0+1+1"]


def latency(*counts: float) -> Latency:
    return Latency("decode", "m", Distribution((0.1, 0.4, 60.0, INF), counts, 1.0))


@pytest.mark.parametrize(
    ("value", "pair", "p99"),
    [
        (latency(10, 10, 10, 10), "<100ms/<100ms", "<100ms"),
        (latency(0, 0, 0, 10), "≥60s/≥60s", "≥60s"),
        (latency(0, 10, 10, 10), "250ms/397ms", "397ms"),
        (latency(0, 0, 0, 0), "–", "–"),
        (Latency("decode", "m", None), "–", "–"),
        (None, "–", "–"),
    ],
)
def test_latencies_keep_their_honesty(value: Latency | None, pair: str, p99: str) -> None:
    worker = replace(D[0], ttft=value)
    wide = replace(COLUMNS["ttft"], width=14)
    assert words(wide.cell(worker, VIEW)) == pair
    assert words(cell("ttft_p99", worker)) == p99


def test_a_latency_over_its_target_is_a_warning() -> None:
    assert tone(cell("ttft_p99", D[1])) is Tone.WARNING
    assert tone(cell("ttft_p99", D[0])) is Tone.TEXT
    assert tone(cell("tpot", D[1])) is Tone.WARNING


@pytest.mark.parametrize(
    ("kv", "expected"), [(0.5, Tone.TEXT), (0.85, Tone.WARNING), (0.97, Tone.CRITICAL), (None, Tone.MUTED)]
)
def test_kv_goes_by_its_levels_and_the_worst_rank(kv: float | None, expected: Tone) -> None:
    assert tone(cell("kv", replace(D[0], kv_use=0.1, kv_use_worst=kv, kv_worst_rank="5"))) is (
        expected if kv is not None else Tone.TEXT
    )
    assert tone(cell("kv", replace(D[0], kv_use=kv, kv_use_worst=None))) is expected


def test_levels_come_from_the_config_also_where_low_is_bad() -> None:
    options = ConsoleOptions(levels={"hit_rate": (0.5, 0.2), "backlog": (5.0, 12.0)})
    view = view_of(MOMENT, Role.PREFILL, options)
    assert [tone(cell("hit", w, view)) for w in P] == [Tone.TEXT, Tone.CRITICAL, Tone.CRITICAL]
    assert [tone(cell("backlog", w, view)) for w in P] == [Tone.CRITICAL, Tone.TEXT, Tone.TEXT]


WARNING = Finding(Severity.WARNING, "transfer_stalled", "stalled", worker="w")
CRITICAL = Finding(Severity.CRITICAL, "breaker_open", "open", worker="w")


@pytest.mark.parametrize(
    ("changes", "findings", "expected"),
    [
        ({}, (), ("ok", Tone.OK)),
        ({"state": None}, (), ("… asking", Tone.MUTED)),
        ({"state": State.OK_WITH_WARNINGS}, (), ("ok ~", Tone.OK)),
        ({"state": State.TIMEOUT}, (WARNING,), ("✖ timeout", Tone.CRITICAL)),
        ({"state": State.FROZEN}, (), ("✖ frozen", Tone.CRITICAL)),
        ({"state": State.METRICS_DISABLED}, (), ("▲ no page", Tone.WARNING)),
        ({"draining": True, "usable": False}, (WARNING,), ("◌ drain", Tone.INFO)),
        ({}, (WARNING,), ("▲ stall", Tone.WARNING)),
        ({}, (WARNING, CRITICAL), ("✖ breaker", Tone.CRITICAL)),
        ({"usable": False}, (), ("▲ unused", Tone.WARNING)),
        ({"usable": None}, (), ("ok", Tone.OK)),
    ],
)
def test_states(
    changes: dict[str, object], findings: tuple[Finding, ...], expected: tuple[str, Tone]
) -> None:
    worker = replace(D[0], **changes)  # type: ignore[arg-type]
    assert judge.state_words(worker, findings) == expected


def test_every_state_has_words_that_fit_the_column() -> None:
    for state in State:
        said, _ = judge.state_words(replace(D[0], state=state), ())
        assert cell_len(said) <= COLUMNS["state"].width, state


@pytest.mark.parametrize(
    ("opinions", "expected"),
    [
        ((), ("–", Tone.MUTED)),
        ((RouterOpinion("r"),), ("–", Tone.MUTED)),
        ((RouterOpinion("r", health=Health.HEALTHY, breaker=Breaker.CLOSED),), ("✓ ok", Tone.OK)),
        ((RouterOpinion("r", breaker=Breaker.CLOSED),), ("✓ ok", Tone.OK)),
        ((RouterOpinion("r", health=Health.HEALTHY, breaker=Breaker.OPEN),), ("✖ open", Tone.CRITICAL)),
        ((RouterOpinion("r", health=Health.UNHEALTHY),), ("✖ failing", Tone.CRITICAL)),
        ((RouterOpinion("r", health=Health.HEALTHY, breaker=Breaker.HALF_OPEN),), ("▲ half", Tone.WARNING)),
        ((RouterOpinion("r", health=Health.DRAINING),), ("◌ drain", Tone.INFO)),
        ((RouterOpinion("r", health=Health.PENDING),), ("◌ pending", Tone.INFO)),
        ((RouterOpinion("a", health=Health.HEALTHY), RouterOpinion("b", listed=False)),
         ("✖ absent", Tone.CRITICAL)),
    ],
)  # fmt: skip
def test_of_several_routers_the_worst_opinion_is_shown(
    opinions: tuple[RouterOpinion, ...], expected: tuple[str, Tone]
) -> None:
    assert judge.router_words(opinions) == expected


def test_old_numbers_fade_and_their_age_stands_where_the_sparkline_was() -> None:
    table = laid_out(chosen(Role.DECODE, "normal", ()), 120, 15)
    worker = replace(D[1], state=State.TIMEOUT, stale=True, age_s=130.0)
    cells = rows.row(worker, VIEW, table)
    by_id = dict(zip([c.id for c in table], cells[1:], strict=True))
    assert words(by_id["ttft_trend"]) == "2m10s"
    assert words(by_id["tpot_trend"]) == ""
    assert tone(by_id["kv"]) is Tone.STALE
    assert tone(by_id["ttft"]) is Tone.STALE
    assert tone(by_id["state"]) is Tone.CRITICAL
    assert tone(by_id["name"]) is Tone.STRONG


def test_a_vanished_worker_is_grey_all_over() -> None:
    table = laid_out(chosen(Role.DECODE, "normal", ()), 120, 15)
    cells = rows.row(D[1], VIEW, table, gone=True, cursor=True)
    assert {t for c in cells[1:] for w, t in c if w.strip()} == {Tone.STALE}
    assert "gone" in "".join(w for c in cells for w, _ in c)


def test_few_changed_cells_are_repainted_one_by_one_many_as_a_row() -> None:
    table = laid_out(chosen(Role.DECODE, "normal", ()), 120, 15)
    before = rows.row(D[0], VIEW, table)
    spans = rows.spans(table)
    one = rows.row(replace(D[0], running=18.0), VIEW, table)
    _, end = spans[3]
    assert list(rows.changed(before, one, table)) == [(end - 1, end)]
    assert list(rows.changed(before, before, table)) == []
    many = rows.row(replace(D[2], trends=D[0].trends), VIEW, table)
    assert len(list(rows.changed(before, many, table))) == 1
