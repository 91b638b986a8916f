"""A drain as an operation: how it goes on with every snapshot, and the answers to its deadline. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pdtop.operations.model import (
    Choice,
    Drain,
    DrainProgress,
    DrainState,
    Operation,
    Outcome,
    Phase,
    Plan,
)

SAFE = "drained: safe to stop"
DEADLINE_CHOICES = (Choice.WAIT, Choice.STOP_ANYWAY, Choice.CANCEL)


def waits(operation: Operation) -> bool:
    """Whether it is a drain that waits until its workers are empty."""
    return operation.phase in (Phase.DRAINING, Phase.DEADLINE) and isinstance(operation.plan.request, Drain)


def advanced(
    operation: Operation, progress: Sequence[DrainProgress], *, overdue: bool, seconds: float
) -> Operation:
    """The drain as it is now. ``progress``: of those of its workers that are still to be drained.

    ``overdue``: of one of them the deadline has passed.
    """
    if not progress:
        return ended(operation, Outcome.CANCELLED, "no longer drained in config.toml", seconds=seconds)
    if all(one.safe_to_stop for one in progress):
        return ended(operation, Outcome.DONE, SAFE, "U brings it back", seconds)
    words = "; ".join(map(_words, progress))
    if overdue and operation.phase is Phase.DRAINING:
        return replace(
            operation,
            phase=Phase.DEADLINE,
            words=f"the deadline has passed; nothing was aborted; {words}",
            choices=DEADLINE_CHOICES,
            seconds=seconds,
        )
    if operation.phase is Phase.DEADLINE:
        words = f"the deadline has passed; nothing was aborted; {words}"
    return operation if words == operation.words else replace(operation, words=words, seconds=seconds)


def since_then(operation: Operation, drained: Iterable[str]) -> Operation:
    """A drain that ended well, as it is now. ``drained``: its workers that are still to be drained.

    Of one that takes requests again nobody may read that it is safe to stop.
    """
    if operation.words != SAFE or not operation.ended:
        return operation
    back = [key for key in operation.plan.targets if key not in set(drained)]
    if not back:
        return operation
    which = "" if len(back) == len(operation.plan.targets) else f": {', '.join(back)}"
    return replace(operation, words=f"was drained; no longer drained in config.toml{which}", next_step="")


def waiting_on(operation: Operation) -> Operation:
    """The answer to the deadline was to wait."""
    return replace(operation, phase=Phase.DRAINING, choices=(Choice.CANCEL,))


def not_waited_for(operation: Operation, progress: Iterable[DrainProgress], seconds: float) -> Operation:
    """The answer was to stop the workers anyway."""
    left = [one.left for one in progress if one.worker in operation.plan.targets]
    known = f"{sum(number for number in left if number is not None):g}" if None not in left else "what is"
    words = f"not waited for any longer: {known} left will be cut when it is stopped"
    return ended(operation, Outcome.TIMED_OUT, words, "U: bring it back", seconds)


def taken_up(id_: str, worker: str, progress: DrainProgress, cluster: str, now: float) -> Operation:
    """A drain from before this console, or from somebody's hand."""
    timeout_s = (progress.deadline or now) - (progress.since or now)
    plan = Plan(
        Drain((worker,), timeout_s),
        f"Drain {worker}, asked for by {progress.by}",
        cluster,
        targets=(worker,),
    )
    return Operation(
        id_,
        plan,
        Phase.DRAINING,
        started=progress.since or now,
        source="taken up",
        choices=(Choice.CANCEL,),
    )


def ended(
    operation: Operation, outcome: Outcome, words: str, next_step: str = "", seconds: float | None = None
) -> Operation:
    return replace(
        operation,
        phase=Phase.ENDED,
        outcome=outcome,
        words=words,
        next_step=next_step,
        choices=(),
        seconds=operation.seconds if seconds is None else seconds,
    )


def _words(one: DrainProgress) -> str:
    words = f"{one.worker}: {one.state.value}," if one.state is not DrainState.DRAINING else f"{one.worker}:"
    words += f" {one.left:g} left" if one.left is not None else " what is left is not known"
    if one.still_on:
        words += f", {', '.join(one.still_on)} may still send"
    return words + (f", about {one.eta_s:.0f} s" if one.eta_s is not None else "")
