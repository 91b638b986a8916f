"""The tuning screen in lines: settings by group, what they act on, before and after; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import groupby
from typing import TYPE_CHECKING

from pdtop.cluster.model import Pool, Role, Snapshot, Worker
from pdtop.insight.load import Work, count_load
from pdtop.operations.model import Comparison
from pdtop.tui import text
from pdtop.tui.headline import clip
from pdtop.tui.lines import line_width
from pdtop.tui.tones import Line, Run, Tone
from pdtop.tui.widgets.row_list import Row
from pdtop.tui.worker_lines import BLANK, heading, labelled, table
from pdtop.tui.worker_lines import Field as Cell

if TYPE_CHECKING:
    from pdtop.operations.fields import Field

#: What the present router does with a key: word and tone. The word stands beside every value.
EFFECTS: Mapping[str, Run] = {
    "live": ("● live", Tone.OK),
    "restart": ("↻ needs a restart", Tone.WARNING),
    "none": ("○ no effect here", Tone.MUTED),
    "pdtop": ("● pdtop itself", Tone.OK),
    "unknown": ("? not known", Tone.MUTED),
}

NOT_SET = "not set"

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}
_BETWEEN = re.compile(r"(-?[\d.]+) to (-?[\d.]+)")
_LEAST = re.compile(r"(?:above |a whole number, )?(-?[\d.]+)(?: or more)?$")


@dataclass(frozen=True, slots=True)
class Acting:
    """What the settings of a pool act on. ``spread`` = (largest − smallest load) / largest, usable ones."""

    spread: float | None
    loads: tuple[float | None, ...]
    by_router: bool  # the loads are the router's, else requests as the workers count them


def acting(workers: Sequence[Worker]) -> Acting:
    """The loads of the usable workers of a pool and their spread."""
    usable = [w for w in workers if w.usable]
    said = [_router_load(w) for w in usable]
    by_router = bool(said) and all(load is not None for load in said)
    loads = said if by_router else [count_load(Work(w.running, w.backlog.total)) for w in usable]
    known = [load for load in loads if load is not None]
    complete = len(known) == len(loads) and bool(known)
    spread = ((max(known) - min(known)) / max(known) if max(known) > 0 else 0.0) if complete else None
    return Acting(spread, tuple(loads), by_router)


def _router_load(worker: Worker) -> float | None:
    loads = [o.load for o in worker.opinions if o.load is not None]
    return sum(loads) if loads else None


def key_of(field: Field) -> str:
    return ".".join(field.path)


def rows(fields: Sequence[Field], pending: Mapping[str, str], snapshot: Snapshot, width: int) -> list[Row]:
    """Groups under headings that say what they act on; then one line a setting."""
    out: list[Row] = []
    for group, members in groupby(fields, key=lambda f: f.group):
        if out:
            out.append(("", BLANK))
        out.append(("", _group_line(group, snapshot, width)))
        out += [(key_of(f), _row(f, pending.get(key_of(f)), width)) for f in members]
    return out


def _group_line(group: str, snapshot: Snapshot, width: int) -> Line:
    role = _ROLES.get(group)
    tone = {"prefill": Tone.PREFILL, "decode": Tone.DECODE}.get(group, Tone.STRONG)
    runs: list[Run] = [(f" {text.clean(group, 20).upper()}", tone)]
    if role is None:
        return tuple(runs)
    pool = snapshot.prefill if role is Role.PREFILL else snapshot.decode
    for label, value in _acts_on(pool, snapshot.pool_workers(role)):
        runs += [(f"  {label} ", Tone.MUTED), (value, Tone.MUTED if value == text.UNKNOWN else Tone.TEXT)]
    return clip(tuple(runs), width)


def _acts_on(pool: Pool, workers: Sequence[Worker]) -> list[tuple[str, str]]:
    now = acting(workers)
    shares = [w.share for w in workers if w.usable]
    hits = pool.hit_rate if pool.hit_rate is not None else _mean([w.hit_rate for w in workers])
    found = [
        ("usable", f"{pool.usable}/{pool.total}"),
        ("spread", text.percent(now.spread)),
        ("load" if now.by_router else "requests", _each(now.loads, text.si)),
        ("share", _each(shares, text.percent)),
    ]
    if pool.role is Role.PREFILL:
        found.insert(2, ("hit", text.percent(hits)))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _each(values: Sequence[float | None], words: Callable[[float | None], str]) -> str:
    """Largest and smallest where there are many."""
    if len(values) <= 4:
        return " ".join(words(v) for v in values) or text.UNKNOWN
    known = [v for v in values if v is not None]
    return f"{words(min(known))}…{words(max(known))}" if known else text.UNKNOWN


def _row(field: Field, pending: str | None, width: int) -> Line:
    narrow = width < 100
    now = text.clean(field.value, 60)
    value: list[Run] = [(now, Tone.STRONG if field.written else Tone.TEXT)]
    if pending is not None:
        value += [(" → ", Tone.MUTED), (text.clean(pending, 40), Tone.SORTED)]
    elif not field.written:
        value.append((" default" if now != NOT_SET else "", Tone.MUTED))
    word, tone = EFFECTS.get(field.effect, EFFECTS["unknown"])
    cells: list[tuple[Line, int]] = [
        (((f"   {text.clean(field.title, 40)}", Tone.TEXT),), 31),
        (tuple(value), 24 if narrow else 32),
    ]
    if not narrow:
        cells.append((((text.clean(field.valid, 60), Tone.MUTED),), 30))
    runs: list[Run] = []
    for line, cell_width in cells:
        cut = clip(line, cell_width - 1)
        runs += [*cut, (" " * (cell_width - line_width(cut)), Tone.TEXT)]
    return clip((*runs, (word, tone)), width)


def detail(field: Field, pending: str | None, width: int) -> list[Line]:
    """One setting in full: what it means, what is valid, what the router does with it."""
    word, tone = EFFECTS.get(field.effect, EFFECTS["unknown"])
    given = "from config.toml" if field.written else "the default, not in config.toml"
    out = [
        heading(key_of(field), given, width),
        *labelled("", field.meaning, width),
        *labelled("valid    ", f"{field.valid}; default {field.default}", width, Tone.MUTED),
        *labelled("choices  ", ", ".join(field.choices), width, Tone.MUTED),
        *labelled("effect   ", f"{word[2:]}: {_without(field.effect_words, word[2:])}", width, tone),
    ]
    if pending is not None:
        change = f"{field.value} → {pending}: ⏎ asks, esc forgets it"
        out += labelled("change   ", change, width, Tone.SORTED)
    return out


def _without(words: str, start: str) -> str:
    return words.removeprefix(start).removeprefix(": ")


def comparison_lines(comparison: Comparison, width: int) -> list[Line]:
    """Before and after the last change, and what can be said of it honestly."""
    spans = f"{text.age(comparison.before_s)} before, {text.age(comparison.after_s)} since"
    cells = [Cell("", 16, "left"), Cell("BEFORE", 10), Cell("AFTER", 10), Cell(spans, 32, "left")]
    lines: list[list[Line]] = [
        [
            ((text.clean(name, 40), Tone.MUTED),),
            ((text.clean(before, 20), Tone.TEXT),),
            ((text.clean(after, 20), Tone.STRONG),),
            ((text.clean(verdict, 60), Tone.TEXT),),
        ]
        for name, before, after, verdict in comparison.rows
    ]
    return [
        heading(f"BEFORE AND AFTER  {text.clean(comparison.title, 80)}", "", width),
        *table(cells, lines, width),
        *labelled(" ", comparison.words, width - 1, Tone.STRONG),
    ]


def stepped(field: Field, now: str, step: int) -> str | None:
    """The value one step on: a number by its step, a choice to its neighbour; None if there is no step."""
    if field.choices:
        bare = now.strip("\"'")
        place = field.choices.index(bare) if bare in field.choices else -1
        return field.choices[(place + step) % len(field.choices)]
    if field.step is None:
        return None
    try:
        start = Decimal(now if now != NOT_SET else "0")
    except InvalidOperation:
        return None
    moved = start + step * Decimal(repr(field.step)).normalize()
    low, high = bounds(field.valid)
    if low is not None and moved < low:
        moved = low
    if high is not None and moved > high:
        moved = high
    return f"{moved:f}"


def bounds(valid: str) -> tuple[Decimal | None, Decimal | None]:
    """Least and greatest value as far as the words about the range say; that they are kept, others see to."""
    if match := _BETWEEN.fullmatch(valid):
        return Decimal(match[1]), Decimal(match[2])
    if match := _LEAST.fullmatch(valid):
        return Decimal(match[1]), None
    return None, None
