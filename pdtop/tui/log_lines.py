"""The audit log in lines: one line an entry, all of an entry, and the filter; pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pdtop.operations.model import LogEntry, Outcome
from pdtop.tui import text
from pdtop.tui.headline import clip
from pdtop.tui.lines import line_width
from pdtop.tui.operation_lines import SIGNS, TONES
from pdtop.tui.tones import Line, Tone
from pdtop.tui.worker_lines import heading, labelled

_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def matching(entries: Sequence[LogEntry], wanted: str) -> list[LogEntry]:
    """Entries in which every word of ``wanted`` stands somewhere."""
    words = wanted.casefold().split()
    return [e for e in entries if all(word in _all_of(e) for word in words)] if words else list(entries)


def _all_of(entry: LogEntry) -> str:
    parts = (
        entry.user, entry.host, entry.ssh_client, entry.operation, entry.target, entry.before, entry.after,
        entry.outcome, entry.words, entry.source, *(call.router for call in entry.calls),
    )  # fmt: skip
    return " ".join(parts).casefold()


def about(entries: Sequence[LogEntry], worker: str, name: str) -> list[LogEntry]:
    """Entries about one worker, by key or by the name it is shown with."""
    wanted = {worker, name}
    return [e for e in entries if not wanted.isdisjoint(e.target.replace(",", " ").split())]


def when(at: float, now: float) -> str:
    """Local time; with its day unless it is today."""
    then = time.localtime(at)
    today = time.strftime("%Y%j", then) == time.strftime("%Y%j", time.localtime(now))
    return time.strftime("%H:%M:%S" if today else "%m-%d %H:%M", then)


def entry_line(entry: LogEntry, width: int, now: float) -> Line:
    """When, how it ended, what, by whom."""
    sign, tone, word = _ended(entry)
    who = text.clean(entry.by, 45) if width >= 100 else text.clean(entry.by.partition("@")[0], 20)
    what = f"{entry.operation} {entry.target}"
    if entry.after and " = " not in entry.after:  # several keys, or one that the operation's name says
        what += f"  {entry.before or 'not set'} → {entry.after}"
    line: Line = (
        (f" {when(entry.at, now):<12}", Tone.MUTED),
        (f"{sign} ", tone),
        (f"{text.clean(what, 160)}", Tone.STRONG),
    )
    tail: Line = (
        (f"  {word}", tone),
        (f"  {who}" + ("  undone" if entry.undone_by else ""), Tone.MUTED),
    )
    room = max(20, width - line_width(tail))
    return clip((*clip(line, room), *tail), width)


def _ended(entry: LogEntry) -> tuple[str, Tone, str]:
    outcome = _OUTCOMES.get(entry.outcome)
    if outcome is not None:
        return SIGNS[outcome], TONES[outcome], outcome.value
    return "◌", Tone.INFO, text.clean(entry.outcome, 24) or "not ended"


def entry_detail(entry: LogEntry, width: int) -> list[Line]:
    """All of one entry."""
    _, tone, word = _ended(entry)
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
    client = f" over SSH from {entry.ssh_client}" if entry.ssh_client else ""
    took = "" if entry.seconds is None else f", took {text.seconds(entry.seconds)}"
    out = [
        heading(f"{text.clean(entry.operation, 24)} {text.clean(entry.target, 80)}", entry.id, width),
        *labelled("when     ", f"{at}{took}", width),
        *labelled("who      ", f"{entry.by}{client}, from {entry.source or 'console'}", width),
        *labelled("before   ", entry.before, width),
        *labelled("after    ", entry.after, width),
        *labelled("outcome  ", f"{word}: {entry.words}" if entry.words else word, width, tone),
    ]
    undo = "u can take it back" if entry.undoable else ""
    if entry.undone_by:
        undo = f"undone by {entry.undone_by}"
    out += labelled("undo     ", undo, width, Tone.MUTED)
    for call in entry.calls:
        status = "no answer" if call.status is None else str(call.status)
        words = (
            f"{call.router}  {call.method} {call.path}  {status}  {text.seconds(call.seconds)}  {call.words}"
        )
        out += labelled("call     ", words, width, Tone.MUTED)
    for name, value in entry.extra.items():
        out += labelled(text.fit(text.clean(name, 8), 9), value, width, Tone.MUTED)
    return out
