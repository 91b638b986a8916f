"""A plan as lines for the question: what is asked, what speaks against it, the diff, the steps; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pdtop.config.render import toml_text
from pdtop.config.save import Conflict
from pdtop.operations.model import (
    AddWorker,
    Apply,
    Drain,
    Guard,
    Plan,
    PoolEffect,
    RemoveWorker,
    Request,
    Restart,
    SetValue,
    SetWeight,
    Undo,
    Undrain,
    UnsetValue,
)
from pdtop.tui import text
from pdtop.tui.headline import clip
from pdtop.tui.tones import Line, Tone
from pdtop.tui.worker_lines import BLANK, labelled, signed

#: Cells of the labels at the left of a question.
LABEL = 11

#: Lines of a diff that are shown; the rest is counted.
MOST_DIFF = 60

#: Rows about values and lines of the file that the plan was made on.
_OF_THE_FILE = ("Change", "File")

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def verb(request: Request) -> str:
    """The word on the button."""
    match request:
        case Drain():
            return "Drain"
        case Undrain():
            return "Undrain"
        case SetWeight():
            return "Set weight"
        case SetValue():
            return "Set"
        case UnsetValue():
            return "Take out"
        case AddWorker():
            return "Add"
        case RemoveWorker():
            return "Remove"
        case Apply():
            return "Apply"
        case Restart():
            return "Restart"
        case Undo():
            return "Undo"


def workers_of(request: Request) -> tuple[str, ...]:
    """Keys of the workers that a request names."""
    match request:
        case Drain(workers=workers) | Undrain(workers=workers):
            return workers
        case SetWeight(worker=worker) | RemoveWorker(worker=worker):
            return (worker,)
        case _:
            return ()


def title(plan: Plan) -> str:
    """The action, its object and the cluster it is done to."""
    cluster = text.clean(plan.cluster, 40)
    words = text.clean(plan.title, 160)
    return words if not cluster or cluster in words else f"{words} · cluster {cluster}"


def plan_lines(plan: Plan, width: int) -> list[Line]:
    """Everything the operator is to know before the answer, the most important first."""
    if plan.refusal is not None:
        return [*_refusals(plan, width), *_after_blank(_rows(plan, width))]
    if plan.nothing_to_do:
        return [*_label("Nothing to do", plan.nothing_to_do, width), *_after_blank(_rows(plan, width))]
    if plan.conflicts:
        return [*_conflicts(plan.conflicts, width), *_after_blank(_rows(plan, width))]
    blocks = [
        [*_rows(plan, width), *(line for e in _effects(plan) for line in _effect(e, width))],
        [line for guard in plan.guards for line in _guard(guard, width)],
        _meanwhile(plan, width),
        diff_lines(plan.diff, width),
        _steps(plan, width),
    ]
    out: list[Line] = []
    for block in blocks:
        out += _after_blank(block) if out else block
    return out


def _after_blank(block: Sequence[Line]) -> list[Line]:
    return [BLANK, *block] if block else []


def _label(label: str, words: str, width: int, tone: Tone = Tone.TEXT) -> list[Line]:
    return labelled(text.fit(text.clean(label, 40), max(LABEL, min(len(label) + 2, 24))), words, width, tone)


def _rows(plan: Plan, width: int) -> list[Line]:
    """What it would do; in a conflict without what was said of the file, which is no longer so."""
    stale = _OF_THE_FILE if plan.conflicts else ()
    return [line for name, words in plan.rows if name not in stale for line in _label(name, words, width)]


def _effects(plan: Plan) -> tuple[PoolEffect, ...]:
    """Those that no row tells already, and always that nobody would be left."""
    told = any(name == "After" for name, _ in plan.rows)
    return tuple(effect for effect in plan.effects if not told or effect.usable_after == 0)


def _effect(effect: PoolEffect, width: int) -> list[Line]:
    none_left = effect.usable_after == 0 and effect.usable_before > 0
    return _label("Effect", effect.text, width, Tone.CRITICAL if none_left else Tone.STRONG)


def _meanwhile(plan: Plan, width: int) -> list[Line]:
    """What somebody else made of the file since the plan before."""
    return [line for change in plan.other_changes for line in _label("Meanwhile", change.text, width)]


def _refusals(plan: Plan, width: int) -> list[Line]:
    out: list[Line] = []
    for guard in plan.guards:
        if guard.blocks and not guard.override:
            out += signed("✖ refused  ", guard.text, width, Tone.CRITICAL)
            out += signed("  to change  ", guard.to_change, width, Tone.TEXT)
    return out


def _guard(guard: Guard, width: int) -> list[Line]:
    tone = Tone.CRITICAL if guard.blocks else Tone.WARNING
    return [
        *signed("✖ " if guard.blocks else "▲ ", guard.text, width, tone),
        *signed("  else ", guard.to_change, width, Tone.MUTED),
    ]


def _steps(plan: Plan, width: int) -> list[Line]:
    return [
        line
        for number, step in enumerate(plan.steps, 1)
        for line in labelled(f"{number}. ", f"{step.where}: {step.words}", width, Tone.MUTED)
    ]


def diff_lines(diff: str, width: int) -> list[Line]:
    """A unified diff with the numbers that its lines have in the file; added ones as in the new file."""
    lines = list(_numbered(diff))
    out: list[Line] = [
        clip(((f"{sign} {number:>4}   ", tone), (text.clean(words), tone)), width)
        if number
        else clip((("       " + text.clean(words), Tone.MUTED),), width)
        for sign, number, words, tone in lines[:MOST_DIFF]
    ]
    if len(lines) > MOST_DIFF:
        out.append(((f"       {len(lines) - MOST_DIFF} more lines", Tone.MUTED),))
    return out


def _numbered(diff: str) -> Iterator[tuple[str, int, str, Tone]]:
    old = new = 0
    named = False
    for line in diff.splitlines():
        if line.startswith("--- "):
            if not named:
                yield " ", 0, line[4:].removesuffix(" (now)"), Tone.MUTED
            named = True
        elif line.startswith("+++ "):
            continue
        elif match := _HUNK.match(line):
            if old:
                yield " ", 0, "…", Tone.MUTED
            old, new = int(match[1]), int(match[2])
        elif line.startswith("+"):
            yield "+", new, line[1:], Tone.ADDED
            new += 1
        elif line.startswith("-"):
            yield "-", old, line[1:], Tone.REMOVED
            old += 1
        else:
            yield " ", new, line[1:], Tone.MUTED
            old, new = old + 1, new + 1


def value_words(value: object) -> str:
    """A value of config.toml as it would be written there."""
    return "not set" if value is None else text.clean(toml_text(value), 120)


def _conflicts(conflicts: Sequence[Conflict], width: int) -> list[Line]:
    """The three sides of each key: what it was, what somebody made of it meanwhile, what is asked here."""
    out: list[Line] = []
    for conflict in conflicts:
        out += signed("✖ ", f"{conflict.key} was changed by someone else meanwhile", width, Tone.CRITICAL)
        for label, value, tone in (
            ("was", conflict.base, Tone.MUTED),
            ("theirs", conflict.theirs, Tone.STRONG),
            ("mine", conflict.mine, Tone.STRONG),
        ):
            out += labelled(f"   {label:<8}", value_words(value), width, tone)
    return out
