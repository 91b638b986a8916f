"""Operations and drains in words: notes under rows, the strip, the details; pure."""

from __future__ import annotations

from collections.abc import Sequence

from pdtop.operations.model import (
    DrainProgress,
    DrainState,
    Operation,
    Outcome,
    Phase,
    RouterOutcome,
    View,
)
from pdtop.tui import text
from pdtop.tui.headline import clip
from pdtop.tui.lines import line_width
from pdtop.tui.plan_lines import verb, workers_of
from pdtop.tui.tones import Line, Run, Tone
from pdtop.tui.worker_lines import BLANK, heading, labelled

SIGNS = {
    Outcome.DONE: "✓",
    Outcome.ACCEPTED_NOT_APPLIED: "▲",
    Outcome.PARTLY_DONE: "▲",
    Outcome.TIMED_OUT: "▲",
    Outcome.REFUSED: "✖",
    Outcome.FAILED: "✖",
    Outcome.CANCELLED: "◌",
}
TONES = {
    Outcome.DONE: Tone.OK,
    Outcome.ACCEPTED_NOT_APPLIED: Tone.WARNING,
    Outcome.PARTLY_DONE: Tone.WARNING,
    Outcome.TIMED_OUT: Tone.WARNING,
    Outcome.REFUSED: Tone.CRITICAL,
    Outcome.FAILED: Tone.CRITICAL,
    Outcome.CANCELLED: Tone.INFO,
}

#: Worst first; what asks something stands above all, what runs above what ended well.
_ORDER = (
    Outcome.FAILED,
    Outcome.REFUSED,
    Outcome.PARTLY_DONE,
    Outcome.TIMED_OUT,
    Outcome.ACCEPTED_NOT_APPLIED,
    None,
    Outcome.CANCELLED,
    Outcome.DONE,
)


def worst_first(operations: Sequence[Operation]) -> list[Operation]:
    """By what needs the operator most, then the newest first."""

    def need(operation: Operation) -> tuple[int, float]:
        rank = -1 if operation.choices and not operation.ended else _ORDER.index(_outcome(operation))
        return rank, -operation.started

    return sorted(operations, key=need)


def _outcome(operation: Operation) -> Outcome | None:
    return operation.outcome if operation.ended else None


def what(operation: Operation) -> str:
    """The operation by its plan's title."""
    return text.clean(operation.plan.title, 100)


def status(operation: Operation) -> tuple[str, Tone]:
    """Sign and word for how it stands."""
    if operation.ended and operation.outcome is not None:
        return f"{SIGNS[operation.outcome]} {operation.outcome.value}", TONES[operation.outcome]
    if operation.phase is Phase.DEADLINE:
        return "▲ deadline passed", Tone.WARNING
    return f"◌ {operation.phase.value}", Tone.INFO


def operation_line(operation: Operation, width: int, now: float) -> Line:
    """One operation in one line: how it stands, what it is, what is said, what to do next.

    Where that does not fit, what it is is said in fewer words, and "done" only by its sign.
    """
    word, tone = status(operation)
    words = _said(operation)
    sign = word.split()[0] if operation.outcome is Outcome.DONE and words else word
    tail: Line = ((f"  {text.clean(operation.next_step, 60)}", Tone.KEY),) if operation.next_step else ()
    brief = _briefly(operation)
    runs: list[Run] = []
    for state, title, gap in ((word, what(operation), "  "), (word, brief, "  "), (sign, brief, " ")):
        runs = [(f" {state}{gap}", tone), (title, Tone.STRONG)]
        if words:
            runs.append((gap + words, Tone.TEXT))
        if not operation.ended:
            runs.append((f"  {text.age(max(0.0, now - operation.started))}", Tone.MUTED))
        if line_width((*runs, *tail)) <= width:
            return (*runs, *tail)
    if line_width(tail) > width // 2:
        return clip((*runs, *tail), width)
    return (*clip(tuple(runs), width - line_width(tail)), *tail)


def _said(operation: Operation) -> str:
    """Its words, without the name of the one worker that the title has already."""
    targets = operation.plan.targets
    words = operation.words.removeprefix(f"{targets[0]}: ") if len(targets) == 1 else operation.words
    return text.clean(words)


def _briefly(operation: Operation) -> str:
    """``Drain 10.0.2.22:30001``."""
    workers = workers_of(operation.plan.request)
    if not workers:
        return what(operation)
    return text.clean(f"{verb(operation.plan.request)} {', '.join(workers)}", 100)


def strip_height(view: View, height: int) -> int:
    """Lines that the strip takes in a terminal of ``height``."""
    wanted = len(view.operations) + (view.holder is not None)
    return min(wanted, 2 if height < 30 else 4)


def operations_strip(view: View, lines: int, width: int, now: float) -> list[Line]:
    """Who else operates here, then operations, worst first; the last line says how many more there are."""
    out: list[Line] = []
    if view.holder is not None:
        sign = "service" if view.holder.service else "locked"
        words = text.clean(view.holder.words, 110)
        out.append(clip(((f" ◌ {sign}  ", Tone.INFO), (words, Tone.TEXT)), width))
    found = worst_first(view.operations)
    shown = found[: max(0, lines - len(out))]
    hidden = len(found) - len(shown)
    for index, operation in enumerate(shown):
        if index == len(shown) - 1:
            tail: Line = (
                (f"  {hidden} more  " if hidden else "  ", Tone.MUTED),
                ("o", Tone.KEY),
                (" operations ", Tone.MUTED),
            )
            line = operation_line(operation, width - line_width(tail), now)
            filler = " " * (width - line_width(line) - line_width(tail))
            out.append((*line, (filler, Tone.TEXT), *tail))
        else:
            out.append(operation_line(operation, width, now))
    return out


def drain_words(drain: DrainProgress, now: float) -> list[Run]:
    """How far a worker has drained, piece by piece."""
    since = None if drain.since is None else max(0.0, now - drain.since)
    runs: list[Run] = []
    if drain.state is DrainState.DRAINED:
        runs.append(("drained: safe to stop", Tone.STRONG))
    else:
        word = "drain, worker unreadable" if drain.state is DrainState.UNKNOWN else drain.state.value
        tone = Tone.INFO if drain.state is DrainState.DRAINING else Tone.WARNING
        runs.append((word + ("" if since is None else f" {text.age(since)}"), tone))
        runs.append((f"{text.count(drain.left)} left", Tone.STRONG if drain.left is not None else Tone.MUTED))
    if drain.still_on:
        runs.append(("still on " + text.clean(", ".join(drain.still_on), 40), Tone.WARNING))
    if drain.eta_s is not None and drain.state is not DrainState.DRAINED:
        runs.append((f"about {eta(drain.eta_s)}", Tone.TEXT))
    if drain.orphans:
        runs.append((f"{text.count(drain.orphans)} held by no router", Tone.WARNING))
    if drain.note:
        runs.append((text.clean(drain.note, 120), Tone.WARNING))
    if drain.deadline is not None and drain.state is not DrainState.DRAINED:
        left = drain.deadline - now
        late = f"deadline passed {text.age(-left)} ago" if left < 0 else f"deadline in {text.age(left)}"
        runs.append((late, Tone.WARNING if left < 0 else Tone.MUTED))
    if drain.by:
        runs.append((f"asked by {text.clean(drain.by, 40)}", Tone.MUTED))
    return runs


def eta(seconds: float) -> str:
    """A guess, so in whole minutes where it is long: ``40s``, ``3m``, ``1h20m``."""
    if seconds < 90:
        return f"{max(1, round(seconds))}s"
    minutes = round(seconds / 60)
    return f"{minutes}m" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def drain_note(drain: DrainProgress, width: int, now: float) -> Line:
    """The line under a draining worker's row; what does not fit is left out from the end."""
    line: Line = (("  └ ", Tone.MUTED),)
    for index, run in enumerate(drain_words(drain, now)):
        longer: Line = (*line, (" · ", Tone.MUTED), run) if index else (*line, run)
        if index and line_width(longer) > width:
            continue
        line = longer
    return clip(line, width)


# The screen of operations --------------------------------------------------------------------------------


def operation_detail(operation: Operation, width: int, now: float) -> list[Line]:
    """All that is known of one operation."""
    word, tone = status(operation)
    seconds = operation.seconds if operation.ended else max(0.0, now - operation.started)
    out: list[Line] = [
        heading(what(operation), "", width),
        ((word, tone), (f"  {text.age(seconds)}, from {text.clean(operation.source, 40)}", Tone.MUTED)),
        *labelled("", operation.words, width),
        *labelled("next   ", operation.next_step, width, Tone.STRONG),
    ]
    for effect in operation.plan.effects:
        out += labelled("effect ", effect.text, width)
    if operation.choices:
        out += labelled("⏎      ", ", ".join(c.value for c in operation.choices), width, Tone.KEY)
    elif operation.conflicts:
        out += labelled("⏎      ", "decide: theirs or mine", width, Tone.KEY)
    for router in operation.routers:
        out += [BLANK, *_router(router, width)]
    if not operation.routers and operation.plan.steps:
        out.append(BLANK)
        for step in operation.plan.steps:
            out += labelled("· ", f"{step.where}: {step.words}", width, Tone.MUTED)
    return out


def _router(router: RouterOutcome, width: int) -> list[Line]:
    out: list[Line] = [
        clip(
            (
                (f"{SIGNS[router.outcome]} ", TONES[router.outcome]),
                (text.clean(router.router, 40), Tone.STRONG),
                (f"  {router.outcome.value}", TONES[router.outcome]),
            ),
            width,
        ),
        *labelled("  ", router.words, width),
        *labelled("  do   ", router.fix, width, Tone.STRONG),
    ]
    for call in router.calls:
        status_word = "no answer" if call.status is None else str(call.status)
        words = f"{call.method} {call.path}  {status_word}  {text.seconds(call.seconds)}  {call.words}"
        out += labelled("  ", words, width, Tone.MUTED)
    return out
