"""The weight editor in lines: the worker's share, what the router does with weights, the others; pure."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

from pdtop.cluster.model import Snapshot, Worker
from pdtop.routers.flags import effect
from pdtop.tui import text
from pdtop.tui.tones import Line, Tone
from pdtop.tui.tuning_lines import EFFECTS
from pdtop.tui.worker_lines import BLANK, Field, labelled, table

STEP = Decimal("0.1")

#: Others of the pool that are listed; the rest is counted.
MOST_OTHERS = 8


def stepped(value: str, sign: int) -> str | None:
    """One step up or down, never below 0; None if ``value`` is no number."""
    try:
        return f"{max(Decimal(0), Decimal(value or '1') + sign * STEP):f}"
    except InvalidOperation:
        return None


def read(typed: str) -> float | None:
    """The weight that was typed; None if it is none."""
    try:
        weight = float(typed)
    except ValueError:
        return None
    return weight if math.isfinite(weight) and weight >= 0 else None


def about(worker: Worker, snapshot: Snapshot, width: int) -> list[Line]:
    """What is to be known before a weight is typed."""
    out = [*labelled("share    ", f"{text.percent(worker.share)} of its pool's requests now", width)]
    for engine in dict.fromkeys(router.engine for router in snapshot.routers):
        does = effect(engine, (worker.role.value, "worker", worker.name, "weight"))
        word, tone = EFFECTS[does.kind]
        words = does.words.removeprefix(word[2:]).removeprefix(": ")
        out += labelled("effect   ", f"{text.clean(engine, 24)}: {word[2:]}: {words}", width, tone)
    others = [w for w in snapshot.pool_workers(worker.role) if w.key != worker.key]
    if others:
        fields = [Field("OTHERS", 32, "left"), Field("WEIGHT", 6), Field("SHARE", 6), Field("RUN", 5)]
        rows: list[list[Line]] = [
            [
                ((text.middle(text.clean(w.name), 32), Tone.TEXT),),
                ((f"{w.weight:g}", Tone.TEXT),),
                ((text.percent(w.share), Tone.TEXT),),
                ((text.count(w.running), Tone.TEXT),),
            ]
            for w in others[:MOST_OTHERS]
        ]
        out += [BLANK, *table(fields, rows, width)]
        if len(others) > MOST_OTHERS:
            out.append(((f" and {len(others) - MOST_OTHERS} more", Tone.MUTED),))
    return out
