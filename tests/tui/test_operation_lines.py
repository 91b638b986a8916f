"""Plans, operations, settings and weights as lines: numbers of a diff, order, steps, bounds."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from pdtop.cluster.model import Health
from pdtop.operations.model import DrainState, Outcome, Phase
from pdtop.tui import log_lines, operation_lines, plan_lines, tuning_lines, weight_lines
from pdtop.tui.lines import line_width
from pdtop.tui.tones import Line, Tone
from tests.tui import fakes, scenes
from tests.tui.fake_gate import draining, operation


def words(line: Line) -> str:
    return "".join(part for part, _ in line)


def test_the_lines_of_a_diff_have_the_numbers_that_they_have_in_the_file() -> None:
    diff = "--- c (now)\n+++ c (new)\n@@ -3,3 +3,3 @@\n a\n-b\n+B\n c\n@@ -20 +20,2 @@\n x\n+y"
    lines = plan_lines.diff_lines(diff, 40)
    assert [words(line).rstrip() for line in lines] == [
        "       c", "     3   a", "-    4   b", "+    4   B", "     5   c", "       …", "    20   x",
        "+   21   y",
    ]  # fmt: skip
    assert [line[0][1] for line in lines[2:4]] == [Tone.REMOVED, Tone.ADDED]


def test_an_operation_in_a_narrow_line_keeps_what_matters() -> None:
    done = operation(
        phase=Phase.ENDED, outcome=Outcome.DONE, words="drained: safe to stop", next_step="U brings it back",
        started=fakes.NOW,
    )  # fmt: skip
    said = {w: words(operation_lines.operation_line(done, w, fakes.NOW)) for w in (120, 70, 65)}
    assert said == {
        120: " ✓ done  Drain decode worker 10.0.2.22:30001  drained: safe to stop  U brings it back",
        70: " ✓ Drain 10.0.2.22:30001 drained: safe to stop  U brings it back",
        65: " ✓ Drain 10.0.2.22:30001 drained: safe to stop  U brings it back",
    }
    going = operation(phase=Phase.DRAINING, words="10.0.2.22:30001: 7 left", started=fakes.NOW)
    line = words(operation_lines.operation_line(going, 80, fakes.NOW + 6))
    assert line == " ◌ draining  Drain decode worker 10.0.2.22:30001  7 left  6s"


@pytest.mark.parametrize(
    ("after", "said"),
    [("0.35", "set k  0.3 → 0.35"), ('decode.worker."w".drain = true', "set k")],
)
def test_an_entry_of_the_log_says_values_and_always_its_end(after: str, said: str) -> None:
    entry = replace(scenes.ENTRIES[1], target="k", after=after)
    line = words(log_lines.entry_line(entry, 80, fakes.NOW))
    assert line[15:] == f"{said}  done  anna"
    long = words(log_lines.entry_line(replace(entry, target="k" * 90, undone_by="a9"), 80, fakes.NOW))
    assert long.endswith("…  done  anna  undone")
    assert len(long) == 80


def test_a_long_diff_is_cut_and_counted() -> None:
    diff = "--- c (now)\n+++ c (new)\n@@ -0,0 +1,99 @@\n" + "\n".join("+x" for _ in range(99))
    lines = plan_lines.diff_lines(diff, 40)
    assert len(lines) == plan_lines.MOST_DIFF + 1
    assert words(lines[-1]).strip() == "40 more lines"


@pytest.mark.parametrize("value", [None, 0.3, "a", ["a", 1], True])
def test_every_value_of_a_conflict_can_be_shown(value: object) -> None:
    assert plan_lines.value_words(value) == {
        "None": "not set", "0.3": "0.3", "a": '"a"', "['a', 1]": '["a", 1]', "True": "true",
    }[str(value)]  # fmt: skip


def test_what_asks_comes_first_then_the_worst_and_what_ended_well_last() -> None:
    ended = [operation(id=outcome.value, phase=Phase.ENDED, outcome=outcome) for outcome in reversed(Outcome)]
    order = operation_lines.worst_first([*ended, operation(id="running"), scenes.DEADLINE])
    assert [o.id for o in order] == [
        "deadline", "failed", "refused", "partly done", "timed out", "accepted, not applied", "running",
        "cancelled", "done",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "draining 2m10s · 13 left · about 3m · deadline in 27m50s · asked by anna@jump-1"),
        (
            {"left": None, "eta_s": None},
            "draining 2m10s · – left · deadline in 27m50s · asked by anna@jump-1",
        ),
        ({"state": DrainState.DRAINED, "left": 0.0}, "drained: safe to stop · asked by anna@jump-1"),
        (
            {"state": DrainState.PARTLY_DRAINED, "still_on": ("R2",), "by": "", "deadline": None},
            "partly drained 2m10s · 13 left · still on R2 · about 3m",
        ),
        (
            {"state": DrainState.UNKNOWN, "left": None, "eta_s": None, "by": "", "deadline": fakes.NOW},
            "drain, worker unreadable 2m10s · – left · deadline passed 1m40s ago",
        ),
        (
            {"orphans": 2.0, "eta_s": None, "by": "", "deadline": None, "note": "back at router R2"},
            "draining 2m10s · 13 left · 2 held by no router · back at router R2",
        ),
    ],
)
def test_a_drain_in_words(changes: dict[str, object], said: str) -> None:
    drain = draining(**changes)
    assert words(operation_lines.drain_note(drain, 120, fakes.NOW + 100)) == "  └ " + said
    for width in (20, 40, 60):
        assert line_width(operation_lines.drain_note(drain, width, fakes.NOW + 100)) <= width


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "1s"), (40, "40s"), (89, "89s"), (100, "2m"), (4800, "1h20m")]
)
def test_a_guess_is_said_roughly(seconds: float, said: str) -> None:
    assert operation_lines.eta(seconds) == said


FIELDS = {tuning_lines.key_of(field): field for field in scenes.FIELDS}


@pytest.mark.parametrize(
    ("key", "now", "step", "then"),
    [
        ("prefill.cache_aware_threshold", "0.3", 1, "0.35"),
        ("prefill.cache_aware_threshold", "0.98", 1, "1"),
        ("prefill.cache_aware_threshold", "0.02", -1, "0"),
        ("prefill.cache_aware_threshold", "x", 1, None),
        ("health.interval_secs", "5", 1, "6"),
        ("prefill.balance_abs_threshold", "not set", 1, "8"),
        ("prefill.balance_rel_threshold", "1.02", -1, "1"),
        ("prefill.policy", '"random"', 1, "round_robin"),
        ("prefill.policy", "no_such", 1, "random"),
    ],
)
def test_a_step_of_a_setting(key: str, now: str, step: int, then: str | None) -> None:
    moved = tuning_lines.stepped(FIELDS[key], now, step)
    if then is not None and then[0].isdigit() and moved is not None:
        assert Decimal(moved) == Decimal(then)
    else:
        assert moved == then


def test_the_spread_is_over_usable_workers_and_unknown_if_one_load_is() -> None:
    workers = [w for w in fakes.moment().workers if w.role.value == "decode"]
    now = tuning_lines.acting(workers)
    assert now.by_router
    assert len(now.loads) == 3, "the draining one does not count"
    assert now.spread == pytest.approx((0.27 - 0.24) / 0.27)
    silent = [replace(w, opinions=()) for w in workers]
    assert tuning_lines.acting(silent).loads == (19.0, 27.0, 19.0)
    assert tuning_lines.acting([replace(silent[0], running=None), *silent[1:]]).spread is None
    assert tuning_lines.acting([]).spread is None
    assert Health.DRAINING in {o.health for w in workers for o in w.opinions}


@pytest.mark.parametrize(
    ("typed", "weight"), [("0.5", 0.5), ("0", 0.0), ("-1", None), ("nan", None), ("inf", None), ("1,5", None)]
)
def test_a_weight_is_a_finite_number_not_below_0(typed: str, weight: float | None) -> None:
    assert weight_lines.read(typed) == weight


def test_steps_of_a_weight_stop_at_0() -> None:
    assert weight_lines.stepped("0.1", -1) == "0"
    assert weight_lines.stepped("0", -1) == "0"
    assert weight_lines.stepped("1", 1) == "1.1"
    assert weight_lines.stepped("x", 1) is None


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ("", ["a2", "a1", "a0"]),
        ("anna", ["a2", "a1"]),
        ("ANNA set", ["a1"]),
        ("router-0", ["a2"]),
        ("zz", []),
    ],
)
def test_the_log_is_searched_in_all_that_an_entry_says(wanted: str, ids: list[str]) -> None:
    assert [e.id for e in log_lines.matching(scenes.ENTRIES, wanted)] == ids


def test_an_entry_about_several_workers_is_about_each() -> None:
    both = replace(scenes.ENTRIES[0], target="10.0.2.22:30001, 10.0.2.23:30001")
    assert log_lines.about([both], "10.0.2.23:30001", "10.0.2.23:30001") == [both]
    assert log_lines.about([both], "10.0.2.2:30001", "10.0.2.2:30001") == []


def test_an_entry_without_an_end_says_so() -> None:
    begun = replace(scenes.ENTRIES[0], outcome="")
    assert "not ended" in words(log_lines.entry_line(begun, 120, fakes.NOW))
