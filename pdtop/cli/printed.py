"""Plans, progress, outcomes and the log as printed lines; pure."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pdtop.cluster.words import clean, count, span
from pdtop.operations.model import (
    AddWorker,
    Drain,
    DrainProgress,
    DrainState,
    Guard,
    LogEntry,
    Operation,
    Outcome,
    Plan,
    Undrain,
)

if TYPE_CHECKING:
    from rich.text import Text

_LABEL = 9  # width of the first column
#: The next step as a console says it, ``U: bring it back``: on the command line there are no keys.
_FOR_A_KEY = re.compile(r"\S(:| \w+s) ")
#: Guards that are about what was typed or about the file itself, not about the cluster.
USAGE = frozenset({"unknown_key", "unknown_worker", "range", "no_config", "broken_config"})


def plan_text(plan: Plan, width: int = 0) -> Text:
    """The whole plan: what is, what will be, what speaks against it, the diff and the steps.

    Rows are wrapped below themselves at ``width``; 0: not at all, as programs want it.
    """
    from rich.text import Text

    text = Text()
    text.append(clean(plan.title), "bold")
    text.append(f"  ({clean(plan.cluster)})\n", "dim")
    above = [*plan.rows]
    if not any(label == "After" for label, _ in plan.rows):
        above += [("After", effect.text) for effect in plan.effects]
    rows = [_Row(label, words) for label, words in above]
    rows += map(_guard, plan.guards)
    for one in plan.conflicts:
        rows.append(_Row("Conflict", conflict_words(one.key, one.base, one.theirs, one.mine)))
    rows += [_Row("Theirs", change.text) for change in plan.other_changes]
    text.append_text(_rows(rows, width))
    if plan.diff:
        text.append_text(diff_text(plan.diff))
    numbered = enumerate(plan.steps, start=1)
    below = [_Row("" if n > 1 else "Steps", f"{n}. {step.where}: {step.words}") for n, step in numbered]
    if plan.nothing_to_do:
        below.append(_Row("Nothing", f"to do: {plan.nothing_to_do}"))
    text.append_text(_rows(below, width))
    text.rstrip()
    return text


class _Row(NamedTuple):
    label: str
    words: str
    style: str = "dim"


def _rows(rows: Iterable[_Row], width: int) -> Text:
    from rich.text import Text

    text = Text()
    indent = 2 + _LABEL
    for row in rows:
        words = clean(row.words)
        if width:
            words = textwrap.fill(words, max(20, width - indent), break_on_hyphens=False).replace(
                "\n", "\n" + " " * indent
            )
        text.append(f"  {clean(row.label):<{_LABEL}}", row.style)
        text.append(f"{words}\n")
    return text


def _guard(guard: Guard) -> _Row:
    if not guard.blocks:
        return _Row("warning", guard_words(guard), "yellow")
    if guard.override:
        return _Row("careful", f"{guard_words(guard)}; to go on, type {guard.override}", "bold yellow")
    return _Row("refused", guard_words(guard), "bold red")


def guard_words(guard: Guard) -> str:
    return f"{guard.text}: {guard.to_change}" if guard.to_change else guard.text


def conflict_words(key: str, base: object, theirs: object, mine: object) -> str:
    """``prefill.policy: was a, somebody else wrote b, yours is c``."""

    def shown(value: object) -> str:
        return "not set" if value is None else clean(str(value))

    return f"{clean(key)}: was {shown(base)}, somebody else wrote {shown(theirs)}, yours is {shown(mine)}"


def diff_text(diff: str) -> Text:
    """A unified diff in its usual colours."""
    from rich.text import Text

    text = Text()
    for line in diff.splitlines():
        style = "dim" if line.startswith(("---", "+++", "@@")) else _DIFF_STYLES.get(line[:1], "")
        text.append(f"    {clean(line)}\n", style)
    return text


_DIFF_STYLES = {"+": "green", "-": "red"}


# While it goes on.


def drain_words(progress: DrainProgress, name: str) -> str:
    """``D2: 12 left, about 40 s; 1 not held by the router``."""
    if progress.state is DrainState.DRAINED:
        words = "drained, safe to stop"
    elif progress.left is None:
        unread = progress.state is DrainState.UNKNOWN
        words = (
            "what is left is not known" if unread else f"{progress.state.value}, what is left is not known"
        )
    else:
        words = f"{count(progress.left)} left"
        if progress.state is not DrainState.DRAINING:
            words = f"{progress.state.value}, {words}"
    if progress.eta_s is not None and progress.state is DrainState.DRAINING:
        words += f", about {span(progress.eta_s)}"
    if progress.still_on and progress.state is not DrainState.DRAINED:
        words += f"; not out at {', '.join(progress.still_on)}"
    if progress.note:
        words += f"; {progress.note}"
    return clean(f"{name}: {words}")


def essence(progress: DrainProgress) -> tuple[object, ...]:
    """What must change for another line where lines cannot be rewritten; the estimate always does."""
    return progress.state, progress.left, progress.still_on, progress.note


# What came of it.


def outcome_lines(operation: Operation) -> Iterator[str]:
    """In words, with what became of it at each router where not all went well, and the next step."""
    outcome = operation.outcome.value if operation.outcome is not None else operation.phase.value
    words = f"{outcome}: {operation.words}" if operation.words not in ("", outcome) else outcome
    yield clean(words)
    for conflict in operation.conflicts:
        yield "  " + conflict_words(conflict.key, conflict.base, conflict.theirs, conflict.mine)
    if any(one.outcome is not Outcome.DONE for one in operation.routers) and len(operation.routers) > 1:
        for one in operation.routers:
            told = f"  {one.router}: {one.outcome.value}" + (f": {one.words}" if one.words else "")
            yield clean(told + (f"; {one.fix}" if one.fix else ""))
    if step := next_step(operation):
        yield clean(f"next: {step}")


def next_step(operation: Operation) -> str:
    """The next sensible command."""
    request, outcome = operation.plan.request, operation.outcome
    if operation.conflicts:
        return "run it again to see your change on top of theirs, or add --overrule to put yours over it"
    if operation.next_step and not _FOR_A_KEY.match(operation.next_step):
        return operation.next_step
    match request, outcome:
        case Drain(workers), Outcome.DONE | Outcome.TIMED_OUT | None:
            return f"pdtop undrain {' '.join(workers)} brings it back"
        case Undrain(), Outcome.DONE:
            return "watch it take requests: pdtop, or pdtop snapshot"
        case AddWorker(), Outcome.DONE:
            return "pdtop snapshot shows whether it takes requests"
        case _, Outcome.ACCEPTED_NOT_APPLIED if "restart" in operation.words:
            return "pdtop restart shows what a restart of the router would bring, and does it"
        case _, Outcome.PARTLY_DONE | Outcome.ACCEPTED_NOT_APPLIED | Outcome.TIMED_OUT:
            return "pdtop apply tries again what is missing"
        case _:
            return ""


# The log.


def log_lines(entries: Sequence[LogEntry]) -> Iterator[str]:
    """One line an attempt; entries as given."""
    for entry in entries:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
        who = entry.by + (f" from {entry.ssh_client}" if entry.ssh_client else "")
        what = entry.extra.get("title") or f"{entry.operation} {entry.target}"
        if values := _values(entry):
            what += f" ({values})"
        outcome = entry.outcome or "not ended"
        if entry.words and entry.words != outcome:
            outcome += f": {entry.words}"
        if entry.undone_by:
            outcome += "; taken back"
        yield clean(f"{when}  {entry.id}  {who}  {what}: {outcome}")


def _values(entry: LogEntry) -> str:
    """``0.3 → 0.4``; the key stands in the title where it was only one."""
    keys = entry.change.keys if entry.change is not None else ()
    if len(keys) == 1 and not keys[0].hidden:
        return f"{keys[0].before or 'not set'} → {keys[0].after or 'not set'}"
    return f"{entry.before} → {entry.after}" if entry.before or entry.after else ""


def log_records(entries: Iterable[LogEntry]) -> Iterator[str]:
    """One JSON object an attempt; entries as given."""
    import json
    from dataclasses import asdict
    from datetime import UTC, datetime

    for entry in entries:
        moment = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="milliseconds")
        yield json.dumps({"time": moment.replace("+00:00", "Z"), **asdict(entry)}, allow_nan=False)


def what_is_asked(plan: Plan) -> str:
    """The verb of a question."""
    if plan.nothing_to_do:  # of a service, which has only to follow the file
        return "Keep it so from now on"
    return "Drain now" if isinstance(plan.request, Drain) else "Go on"
