"""What is done to a worker, for its page: its drain, the check list of its return, its last events; pure."""

from __future__ import annotations

from pdtop.tui import log_lines, text
from pdtop.tui.headline import clip
from pdtop.tui.operation_lines import drain_words
from pdtop.tui.tones import Line, Run, Tone
from pdtop.tui.worker_lines import BLANK, heading, labelled
from pdtop.tui.worker_view import WorkerView

#: Events of the audit log that the page shows.
MOST_EVENTS = 5

_CHECKS: dict[str, Run] = {
    "ok": (" ✓ ", Tone.OK),
    "waiting": (" ◌ ", Tone.INFO),
    "failed": (" ✖ ", Tone.CRITICAL),
}


def operation_block(view: WorkerView, width: int) -> list[Line]:
    """Drain, return and last events; nothing if nothing was ever done to it."""
    now = view.snapshot.at
    out: list[Line] = []
    for block in (_drain(view, width, now), _readmission(view, width, now), _events(view, width, now)):
        if block:
            out += [BLANK, *block] if out else block
    return out


def _drain(view: WorkerView, width: int, now: float) -> list[Line]:
    if view.drain is None:
        return []
    lines = [clip(((" ", Tone.TEXT), run), width) for run in drain_words(view.drain, now)]
    return [heading("DRAIN", "U brings it back", width), *lines]


def _readmission(view: WorkerView, width: int, now: float) -> list[Line]:
    back = view.readmission
    if back is None:
        return []
    out = [heading("BROUGHT BACK", f"{text.age(now - back.since)} ago", width)]
    for state, words in back.checks:
        sign, tone = _CHECKS.get(state, (" · ", Tone.MUTED))
        out += labelled(sign, words, width, tone)
    return out


def _events(view: WorkerView, width: int, now: float) -> list[Line]:
    if not view.events:
        return []
    lines = [log_lines.entry_line(entry, width, now) for entry in view.events[:MOST_EVENTS]]
    return [heading("LAST EVENTS", "l shows the whole log", width), *lines]
