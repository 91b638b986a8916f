"""The drift screen in lines: what differs where, and the restart that some of it waits for; pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pdtop.cluster.model import Drift, Snapshot
from pdtop.operations.model import RestartPlan
from pdtop.tui import text
from pdtop.tui.tones import Line, Tone
from pdtop.tui.worker_lines import BLANK, heading, labelled, signed


def page(snapshot: Snapshot, restart: RestartPlan | None, width: int) -> list[Line]:
    """All of the screen, each line at most ``width`` cells."""
    return [*_file(snapshot, width), *_drift(snapshot, width), BLANK, *_restart(restart, width)]


def _file(snapshot: Snapshot, width: int) -> list[Line]:
    if not snapshot.config_error:
        return []
    told = signed("✖ ", snapshot.config_error, width, Tone.CRITICAL)
    return [heading("CONFIG.TOML", "broken: the last good one is in force", width), *told, BLANK]


def _drift(snapshot: Snapshot, width: int) -> list[Line]:
    found = snapshot.drift
    many = "difference" if len(found) == 1 else "differences"
    out = [heading("DRIFT", f"config.toml, routers and workers: {len(found)} {many}", width)]
    if not found:
        return [*out, ((" ✓ nothing differs", Tone.OK),)]
    for worker in dict.fromkeys(d.worker for d in found):
        known = snapshot.worker(worker)
        name = text.middle(text.clean(known.name if known is not None else worker), 48)
        role = f"  {known.role.value}" if known is not None else ""
        out.append(((f" {name}", Tone.STRONG), (role, Tone.MUTED)))
        out += [line for d in found if d.worker == worker for line in _one(d, width)]
    return out


def _one(drift: Drift, width: int) -> list[Line]:
    return [
        *signed("   ▲ ", drift.text, width, Tone.WARNING),
        *labelled("     do   ", drift.fix, width),
    ]


def _restart(restart: RestartPlan | None, width: int) -> list[Line]:
    if restart is None or not restart.changes:
        return [heading("RESTART PLAN", "no change waits for a restart of a router", width)]
    many = "change waits" if len(restart.changes) == 1 else "changes wait"
    out = [heading("RESTART PLAN", f"{len(restart.changes)} {many} for a restart of the router", width)]
    for change in restart.changes:
        out += labelled(" ↻ ", change.text, width)
    for warning in restart.warnings:
        out += signed(" ▲ ", warning, width, Tone.WARNING)
    if restart.command:
        out += _command(" command  ", restart.command, width)
    else:
        out += labelled(" command  ", "as it is: the router reads config.toml itself", width, Tone.MUTED)
    for words in restart.lost:
        out += labelled(" lost     ", words, width)
    out += labelled(" gap      ", restart.gap, width)
    if restart.restart_command:
        out += _command(" R runs   ", restart.restart_command, width)
    else:
        words = "nothing yet: [server] restart_command in config.toml says what"
        out += labelled(" R runs   ", words, width, Tone.MUTED)
    return out


def _command(label: str, command: Sequence[str], width: int) -> list[Line]:
    """A command line, whole: it is there to be copied."""
    room = max(10, width - len(label))
    lines: list[str] = [""]
    for word in (text.clean(shlex.quote(part), 4000) for part in command):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    pieces = [line[i : i + room] for line in lines for i in range(0, max(1, len(line)), room)]
    return [
        ((label if index == 0 else " " * len(label), Tone.MUTED), (piece, Tone.STRONG))
        for index, piece in enumerate(pieces)
    ]
