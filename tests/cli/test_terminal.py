"""A verb from plan to exit code, with a scripted gate and scripted answers."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat

import pytest
from rich.console import Console

from pdtop.cli.printed import plan_text
from pdtop.cli.terminal import Terminal
from pdtop.cli.verbs import Code, How, Verb
from pdtop.cluster.model import Drift
from pdtop.config.save import Conflict
from pdtop.operations.model import (
    AddWorker,
    Drain,
    DrainState,
    Guard,
    Outcome,
    Phase,
    Plan,
    RouterOutcome,
    SetValue,
    Undo,
    Undrain,
    View,
)
from tests.cli.scripted_gate import (
    D2,
    DRAINED,
    ScriptedGate,
    Step,
    drain_plan,
    draining,
    ended,
    no_new_work,
    operation,
)

DONE = RouterOutcome("R1", Outcome.DONE, "taken out")
AWAY = RouterOutcome("R2", Outcome.TIMED_OUT, "no answer", "see whether R2 runs")
TIME_IS_UP = draining(2, phase=Phase.DEADLINE)
WAITS = How(yes=True, wait_s=600.0)


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str
    calls: list[str]


def run(
    gate: ScriptedGate,
    how: How = WAITS,
    request: Drain | Undrain | SetValue | Undo | AddWorker = Drain((D2,)),  # noqa: B008 - frozen
    answers: Iterable[str] | None = None,
    *,
    clock: Iterator[float] | None = None,
    rewrites: bool = False,
    drift: Sequence[Drift] = (),
) -> Ran:
    """``answers`` None: there is nobody to ask."""
    out, err, given = io.StringIO(), io.StringIO(), iter(answers or ())

    def read() -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    terminal = Terminal(
        interactive=answers is not None,
        out=Console(file=out, width=200),
        err=Console(file=err, width=60 if rewrites else 200, force_terminal=rewrites, no_color=True),
        read=read,
    )
    ticks = clock if clock is not None else repeat(0.0)
    verb = Verb(
        gate,
        terminal,
        how,
        name_of=lambda key: "D2" if key == D2 else key,
        drift=drift,
        clock=lambda: next(ticks),
    )
    code = verb.run(request)
    return Ran(code, out.getvalue(), err.getvalue(), gate.calls)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)


# Plan and question.


def test_a_dry_run_prints_the_plan_and_sends_nothing() -> None:
    done = run(ScriptedGate(drain_plan(diff="--- a\n+++ b\n@@ -1 +1 @@\n+drain = true")), How(dry_run=True))
    assert (done.code, done.calls, done.err) == (0, [], "")
    assert f"Drain decode worker {D2}  (prod-a)" in done.out
    assert "+drain = true" in done.out


@pytest.mark.parametrize(("kind", "code"), [("capacity", Code.REFUSED), ("unknown_key", Code.USAGE)])
def test_a_dry_run_says_by_its_code_what_would_be_refused(kind: str, code: Code) -> None:
    gate = ScriptedGate(drain_plan(guards=(Guard(kind, "it cannot be", "change that"),)))
    done = run(gate, How(dry_run=True))
    assert (done.code, done.calls) == (code, [])
    assert "refused  it cannot be: change that" in done.out


def test_a_refused_plan_is_not_asked_about() -> None:
    gate = ScriptedGate(drain_plan(guards=(Guard("locked", "anna operates on this cluster"),)))
    done = run(gate, How(), answers=["y"])
    assert (done.code, done.calls) == (4, [])
    assert "anna operates" in done.err


def test_read_only_of_the_gate_is_no_objection_where_a_verb_may_arm_it() -> None:
    gate = ScriptedGate(drain_plan(guards=(Guard("read_only", "read-only"),)), [no_new_work(DONE)])
    assert run(gate, How(yes=True)).code == 0


def test_read_only_of_the_file_refuses() -> None:
    gate = ScriptedGate(drain_plan(), [no_new_work(DONE)])
    why = Guard("read_only", "config.toml says [console] read_only = true", "--write goes over it")
    done = run(gate, How(yes=True, read_only=why))
    assert (done.code, done.calls) == (4, [])
    assert "--write goes over it" in done.err


def test_without_a_terminal_yes_is_needed() -> None:
    done = run(ScriptedGate(drain_plan()), How())
    assert (done.code, done.calls) == (2, [])
    assert "add --yes" in done.out


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("yes", 0), ("", 4), ("n", 4), ("x", 4)])
def test_the_question_means_no_unless_it_is_yes(answer: str, code: int) -> None:
    done = run(ScriptedGate(drain_plan(), [no_new_work(DONE)]), How(), answers=[answer])
    assert done.code == code
    assert (done.calls == []) == (code == 4)
    assert "Drain now? [y/N]" in done.err


def test_the_end_of_the_input_is_no() -> None:
    assert run(ScriptedGate(drain_plan()), How(), answers=[]).code == 4


LAST = drain_plan(guards=(Guard("last_of_pool", "the last one", "bring another back", True, "D2"),))


@pytest.mark.parametrize(("word", "code"), [("D2", 0), ("d2", 4), ("y", 4)])
def test_the_name_is_typed_for_the_last_of_a_pool_and_nothing_else_is_asked(word: str, code: int) -> None:
    gate = ScriptedGate(LAST, [no_new_work(DONE)])
    done = run(gate, How(), answers=[word])
    assert done.code == code
    assert "[y/N]" not in done.err
    assert gate.typed == (("D2",) if code == 0 else ())


def test_a_script_gives_the_name_with_type() -> None:
    assert run(ScriptedGate(LAST), How(yes=True)).code == 4
    gate = ScriptedGate(LAST, [no_new_work(DONE)])
    assert run(gate, How(yes=True, typed=("D2",))).code == 0
    assert gate.typed == ("D2",)


def test_somebody_else_takes_the_lock_while_the_question_is_open() -> None:
    gate = ScriptedGate(drain_plan())
    gate.why_not_arm = "anna@jump-1 operates on this cluster"
    done = run(gate, How(yes=True))
    assert (done.code, done.calls) == (4, ["arm"])
    assert "anna@jump-1" in done.out


@pytest.mark.parametrize(
    ("request_", "code"), [(Drain((D2,)), 0), (Undrain((D2,)), 0), (SetValue(("a",), "1"), 0), (Undo(), 4)]
)
def test_nothing_to_do_is_done_except_for_an_undo(
    request_: Drain | Undrain | SetValue | Undo, code: int
) -> None:
    done = run(ScriptedGate(drain_plan(nothing_to_do="it is so already")), How(yes=True), request_)
    said = "refused" if code else "nothing to do"
    assert (done.code, done.calls, done.out) == (code, [], f"{said}: it is so already\n")


def test_what_the_file_says_and_a_router_does_not_do_is_not_done() -> None:
    drift = [
        Drift(D2, "drain", "drain: config says drained, router R2 still has it", "R2"),
        Drift(D2, "version", "engine says 0.4"),
        Drift("10.0.2.23:30001", "drain", "another worker", "R2"),
    ]
    done = run(ScriptedGate(drain_plan(nothing_to_do="D2 is drained already")), How(yes=True), drift=drift)
    assert done.code == 6
    assert done.out.startswith(
        "partly done: D2 is drained already; but drain: config says drained, router R2 still has it\n"
    )


# Outcomes.


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.DONE, 0),
        (Outcome.FAILED, 1),
        (Outcome.TIMED_OUT, 3),
        (Outcome.REFUSED, 4),
        (Outcome.CANCELLED, 4),
        (Outcome.ACCEPTED_NOT_APPLIED, 5),
        (Outcome.PARTLY_DONE, 6),
    ],
)
def test_every_outcome_has_its_code_and_its_words(outcome: Outcome, code: int) -> None:
    done = run(
        ScriptedGate(drain_plan(), [ended(outcome, "as it was")]), How(yes=True), SetValue(("a",), "1")
    )
    assert done.code == code
    assert done.out.startswith(f"{outcome.value}: as it was\n")


def test_a_refusal_at_the_start_is_told() -> None:
    refused = operation(Phase.ENDED, outcome=Outcome.REFUSED, words="no", next_step="do this")
    done = run(ScriptedGate(drain_plan(), refused=refused), How(yes=True))
    assert (done.code, done.out) == (4, "refused: no\nnext: do this\n")


def test_partly_done_names_each_router() -> None:
    view = ended(Outcome.PARTLY_DONE, "one of two", routers=(DONE, AWAY))
    done = run(ScriptedGate(drain_plan(), [view]), How(yes=True), SetValue(("a",), "1"))
    assert "R2: timed out: no answer; see whether R2 runs" in done.out
    assert "next: pdtop apply tries again what is missing" in done.out


def test_a_key_of_the_console_is_no_next_step_here() -> None:
    words = "written; prefill.policy counts only after a restart of the router"
    view = ended(Outcome.ACCEPTED_NOT_APPLIED, words, next_step="c: the restart plan")
    done = run(ScriptedGate(drain_plan(), [view]), How(yes=True), SetValue(("a",), "1"))
    assert done.code == 5
    assert "c: the" not in done.out
    assert "next: pdtop restart shows" in done.out


def test_a_conflict_shows_all_three_and_how_to_go_on() -> None:
    conflict = Conflict("prefill.policy", "a", None, "c")
    view = ended(Outcome.REFUSED, "someone else changed the same key", conflicts=(conflict,))
    done = run(ScriptedGate(drain_plan(), [view]), How(yes=True), SetValue(("a",), "1"))
    assert done.code == 4
    assert "prefill.policy: was a, somebody else wrote not set, yours is c" in done.out
    assert "--overrule" in done.out


def test_overrule_goes_to_the_gate() -> None:
    gate = ScriptedGate(drain_plan(), [ended(Outcome.DONE)])
    run(gate, How(yes=True, overrule=True), SetValue(("a",), "1"))
    assert gate.overruled


# Draining.


@pytest.mark.parametrize(
    ("routers", "words", "code", "said"),
    [
        ((DONE,), "", 0, "no new work comes"),
        ((DONE, AWAY), "R2: no answer", 6, "partly done: R2: no answer"),
        ((AWAY,), "no answer", 3, "timed out: no answer"),
        ((DONE,), "held back", 6, "partly done: held back"),
    ],
)
def test_without_wait_it_ends_when_no_new_work_comes(
    routers: tuple[RouterOutcome, ...], words: str, code: int, said: str
) -> None:
    done = run(ScriptedGate(drain_plan(), [no_new_work(*routers, words=words)]), How(yes=True))
    assert done.code == code
    assert said in done.out


def test_wait_ends_with_0_only_when_it_is_drained() -> None:
    gate = ScriptedGate(drain_plan(), [no_new_work(DONE), draining(3), draining(3), draining(1), DRAINED])
    done = run(gate)
    assert (done.code, done.calls) == (0, ["arm", "start Drain", "disarm"])
    assert done.out.startswith("drained: D2 is safe to stop\n")
    assert [line for line in done.err.splitlines() if "left" in line] == ["D2: 3 left", "D2: 1 left"]


def test_a_log_that_cannot_be_written_holds_nobody_up_for_long() -> None:
    gate = ScriptedGate(drain_plan(), [no_new_work(DONE), draining(0, DrainState.DRAINED)])
    assert run(gate, clock=map(float, count())).code == 0


def test_while_a_router_still_sends_the_gate_is_armed_to_tell_it_again() -> None:
    back = draining(3, DrainState.PARTLY_DRAINED, still_on=("R2",), note="back at router R2")
    gate = ScriptedGate(drain_plan(), [no_new_work(DONE), draining(3), back, draining(2), DRAINED])
    done = run(gate)
    assert done.code == 0
    assert done.calls == ["arm", "start Drain", "disarm", "arm", "disarm"]
    assert "D2: partly drained, 3 left; not out at R2; back at router R2" in done.err


def test_on_a_terminal_one_line_is_rewritten() -> None:
    gate = ScriptedGate(drain_plan(), [no_new_work(DONE), draining(300), draining(1, eta_s=40.0), DRAINED])
    done = run(gate, rewrites=True)
    assert "\r\x1b[KD2: 300 left\r\x1b[KD2: 1 left, about 40 s\n" in done.err


def test_the_deadline_in_a_script_aborts_nothing() -> None:
    done = run(ScriptedGate(drain_plan(), [no_new_work(DONE), draining(2), TIME_IS_UP]))
    assert (done.code, done.calls) == (3, ["arm", "start Drain", "disarm"])
    assert "not drained in time: D2: 2 left" in done.out
    assert "the drain stays in force" in done.out


@pytest.mark.parametrize(
    ("answers", "code", "calls"),
    [
        (["s"], 3, ["choose stop anyway"]),
        (["?", "", "s"], 3, ["choose stop anyway"]),
        (["w"], 0, ["choose wait"]),
        (["c"], 4, ["arm", "start Undrain"]),
    ],
)
def test_the_deadline_asks_on_a_terminal(answers: list[str], code: int, calls: list[str]) -> None:
    gate = ScriptedGate(drain_plan(), [no_new_work(DONE), TIME_IS_UP, DRAINED, ended(Outcome.DONE)])
    done = run(gate, answers=answers)
    assert done.code == code
    assert done.calls[3:] == calls
    assert "nothing was aborted" in done.err


def test_a_worker_that_is_drained_already_is_waited_for_without_any_change() -> None:
    gate = ScriptedGate(drain_plan(nothing_to_do="D2 is drained already", guards=(Guard("locked", "anna"),)))
    gate.current = DRAINED
    done = run(gate)
    assert (done.code, done.calls) == (0, [])
    assert "D2 is safe to stop" in done.out


def test_such_a_wait_has_a_deadline_of_its_own() -> None:
    gate = ScriptedGate(drain_plan(nothing_to_do="D2 is drained already"))
    gate.current = draining(2)
    done = run(gate, clock=map(float, count(0, 400)))
    assert (done.code, done.calls) == (3, [])


def test_somebody_brings_it_back_meanwhile() -> None:
    done = run(ScriptedGate(drain_plan(), [no_new_work(DONE), draining(2), no_new_work(DONE)]))
    assert done.code == 4
    assert "config.toml no longer says that D2 is to be drained" in done.out


def test_ctrl_c_leaves_the_drain_in_force() -> None:
    done = run(ScriptedGate(drain_plan(), [no_new_work(DONE), draining(2), interrupted]))
    assert done.code == 130
    assert "the drain of D2 stays in force" in done.out
    assert f"pdtop undrain {D2} brings it back" in done.out


def test_ctrl_c_does_not_cut_a_change_in_two() -> None:
    writing = operation(Phase.WRITING, words="writing config.toml")
    script: list[Step] = [interrupted, View(operations=(writing,)), ended(Outcome.DONE, "all well")]
    done = run(ScriptedGate(drain_plan(), script), How(yes=True), SetValue(("a",), "1"))
    assert done.code == 0
    assert done.out.startswith("done: all well\n")
    assert "finished first" in done.err


def test_ctrl_c_while_it_is_told_does_not_wait_for_the_drains_end() -> None:
    """``drain --wait && systemctl stop``: who wanted to leave does not stop the worker after all."""
    script: list[Step] = [interrupted, no_new_work(DONE), draining(2), DRAINED]
    done = run(ScriptedGate(drain_plan(), script))
    assert done.code == 130
    assert "the drain of D2 stays in force" in done.out


def test_ctrl_c_twice_leaves_at_once() -> None:
    done = run(ScriptedGate(drain_plan(), [interrupted, interrupted]), How(yes=True))
    assert done.code == 130
    assert "pdtop log" in done.out


def test_ctrl_c_at_the_deadlines_question_leaves_the_drain_in_force() -> None:
    def answers() -> Iterator[str]:
        interrupted()
        yield "w"

    done = run(ScriptedGate(drain_plan(), [no_new_work(DONE), TIME_IS_UP]), answers=answers())
    assert done.code == 130
    assert "stays in force" in done.out


def test_ctrl_c_at_the_question_changes_nothing() -> None:
    def answers() -> Iterator[str]:
        yield from ()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(ScriptedGate(drain_plan()), How(), answers=answers())


# What is printed.


def test_a_plan_as_text() -> None:
    plan = Plan(
        Drain((D2,)),
        "Drain \x1b[31mD2",
        "prod-a",
        rows=(("Now", "3 running"), ("", "2 waiting")),
        guards=(
            Guard("capacity", "KV comes to 92 %", "drain later", blocks=False),
            Guard("last_of_pool", "the last one", "bring another back", True, "D2"),
        ),
        diff="--- a\n+++ b\n@@ -1 +1 @@\n-x = 1\n+x = 2",
    )
    assert plan_text(plan).plain.splitlines() == [
        "Drain �[31mD2  (prod-a)",
        "  Now      3 running",
        "           2 waiting",
        "  warning  KV comes to 92 %: drain later",
        "  careful  the last one: bring another back; to go on, type D2",
        "    --- a",
        "    +++ b",
        "    @@ -1 +1 @@",
        "    -x = 1",
        "    +x = 2",
    ]
    styles = {
        plan_text(plan).plain[span.start : span.end].strip(): str(span.style)
        for span in plan_text(plan).spans
    }
    assert (styles["-x = 1"], styles["+x = 2"]) == ("red", "green")


def terminal_of(err: io.StringIO, *, rewrites: bool = False) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    shown = Console(file=err, width=200, force_terminal=rewrites, no_color=True)
    read = iter(("no",)).__next__
    return Terminal(interactive=True, out=Console(file=out, width=200), err=shown, read=read), out


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("[2001:db8:a:b::1]:30001 is drained", "[2001:db8:a:b::1]:30001 is drained"),  # :b: is an emoji code
        ("[red]D2[/red] :100: left", "[red]D2[/red] :100: left"),
        ("D2 \x1b]0;gone\x07\n\u202e", "D2 �]0;gone� �"),
    ],
)
def test_words_are_printed_as_they_are_and_harmless(words: str, printed: str) -> None:
    err = io.StringIO()
    terminal, out = terminal_of(err)
    terminal.answer([words])
    assert out.getvalue() == f"{printed}\n"
    terminal.say(words)
    terminal.progress(words, worth_a_line=True)
    assert err.getvalue() == f"{printed}\n" * 2
    assert not terminal.typed(words)
    assert err.getvalue().endswith(f"type {printed} to go on: ")


def test_a_rewritten_line_is_harmless() -> None:
    err = io.StringIO()
    terminal, _ = terminal_of(err, rewrites=True)
    terminal.progress("D2\x1b[2J: 3 left", worth_a_line=False)
    assert err.getvalue() == "\r\x1b[KD2�[2J: 3 left"


LONG = "3 of 4 decode workers usable, KV 39 % → 52 %, running each 5.5 → 7.3, fullest of the rest 46 % now"


def test_on_a_terminal_rows_are_wrapped_below_themselves() -> None:
    plan = drain_plan(rows=(("After", LONG),), guards=(Guard("work", LONG),), nothing_to_do="as it is")
    lines = plan_text(plan, 60).plain.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1:3] == [
        "  After    3 of 4 decode workers usable, KV 39 % → 52 %,",
        "           running each 5.5 → 7.3, fullest of the rest 46 %",
    ]
    assert f"  After    {LONG}\n" in plan_text(plan).plain


def test_what_a_router_did_not_take_over_is_told_with_what_to_do() -> None:
    behind = RouterOutcome("R1", Outcome.ACCEPTED_NOT_APPLIED, "not taken over", "it follows another file")
    done = run(ScriptedGate(drain_plan(), [no_new_work(behind), draining(2), DRAINED]))
    assert "R1: accepted, not applied: not taken over; it follows another file" in done.err


def test_a_worker_that_was_not_read_yet_is_no_alarm() -> None:
    unread = draining(None, DrainState.UNKNOWN, note="not read yet")
    done = run(ScriptedGate(drain_plan(), [no_new_work(DONE), unread, DRAINED]))
    assert "D2: what is left is not known; not read yet" in done.err
