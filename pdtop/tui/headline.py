"""The words of the overview: top line, findings strip, pool summaries; pure, by width."""

from __future__ import annotations

from dataclasses import dataclass

from pdtop.cluster.model import READABLE, Finding, Latency, Pool, Role, Router, Severity, Snapshot
from pdtop.tui import text
from pdtop.tui.judge import by_target
from pdtop.tui.lines import line_width
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.tones import SEVERITY_ORDER, SYMBOLS, TONES, Line, Run, Tone

#: Below this many cells the short forms are used.
NARROW = 112


@dataclass(frozen=True, slots=True)
class Status:
    """What the top line says beside the numbers."""

    paused_s: float | None = None  # how old the frozen picture is; None: live
    age_s: float | None = None  # of the newest data
    interval_s: float = 1.0
    read_only: bool = True


def spread(left: Line, right: Line, width: int) -> Line:
    """``left`` and ``right`` at the two ends of ``width`` cells; the right one stays whole."""
    room = width - line_width(right)
    kept: list[Run] = []
    used = 0
    for words, tone in left:
        size = line_width(((words, tone),))
        if used + size > room - 1:
            kept.append((text.fit(words, max(0, room - 1 - used)), tone))
            used = max(used, room - 1)
            break
        kept.append((words, tone))
        used += size
    return (*kept, (" " * max(0, room - used), Tone.HEADER), *right)


def join(parts: list[Line], gap: str = "   ") -> Line:
    """``parts`` with ``gap`` between those that are not empty."""
    out: list[Run] = []
    for part in parts:
        if part:
            out += [(gap, Tone.MUTED), *part] if out else list(part)
    return tuple(out)


def top_line(snapshot: Snapshot, status: Status, options: ConsoleOptions, width: int) -> Line:
    """Cluster, engine, P:D usable, headline latencies, goodput; at the right live or paused, age and mode."""
    narrow = width < NARROW
    cluster = text.clean(snapshot.cluster, 24 if narrow else 40)
    left = [
        ((" " + cluster, Tone.STRONG),),
        _engine(snapshot.routers, narrow),
        _ratio(snapshot),
    ]
    if narrow:
        left += [_p99("TTFT", snapshot.ttft, _target(snapshot, "ttft")),
                 _p99("TPOT", snapshot.tpot, _target(snapshot, "tpot"))]  # fmt: skip
    else:
        left += [_p50_p99("TTFT", snapshot.ttft, _target(snapshot, "ttft")),
                 _p50_p99("TPOT", snapshot.tpot, _target(snapshot, "tpot"))]  # fmt: skip
    left.append(_goodput(snapshot, narrow))
    return spread(join(left, "  " if narrow else "   "), _right(status, options, cluster, narrow), width)


def _engine(routers: tuple[Router, ...], narrow: bool) -> Line:
    if not routers:
        return (("no router", Tone.MUTED),)
    worst = min(routers, key=lambda r: (r.ready is True, r.state in READABLE))
    name = worst.engine if narrow or not worst.version else f"{worst.engine} {worst.version}"
    name = text.clean(name, 24)
    if len(routers) > 1:
        name += f" ×{len(routers)}"
    if worst.state is not None and worst.state not in READABLE:
        sign: Run = ("✖", Tone.CRITICAL) if narrow else (f"✖ {worst.state.value}", Tone.CRITICAL)
    elif worst.ready is None:
        sign = ("?", Tone.MUTED)
    elif worst.ready:
        sign = ("●" if narrow else "● ready", Tone.OK)
    else:
        sign = ("✖ not ready", Tone.CRITICAL)
    return ((name + " ", Tone.TEXT), sign)


def _ratio(snapshot: Snapshot) -> Line:
    """``3P 4D`` usable; with ``of`` where not all are."""
    runs: list[Run] = []
    for pool, letter, tone in ((snapshot.prefill, "P", Tone.PREFILL), (snapshot.decode, "D", Tone.DECODE)):
        number = str(pool.usable) if pool.usable == pool.total else f"{pool.usable}/{pool.total}"
        if pool.total and not pool.usable and not pool.usable_unknown:
            tone = Tone.CRITICAL
        runs.append((f"{number}{letter}", tone))
    return (runs[0], (" ", Tone.TEXT), runs[1])


def _target(snapshot: Snapshot, which: str) -> float | None:
    goodput = snapshot.goodput
    if goodput is None:
        return None
    return goodput.ttft_target_s if which == "ttft" else goodput.tpot_target_s


def _p99(label: str, latency: Latency | None, target_s: float | None) -> Line:
    p99 = text.p(latency.distribution if latency else None, 0.99)
    tone = by_target(p99.value if p99 else None, target_s, (None, None))
    return ((f"{label} p99 ", Tone.MUTED), (text.quantile(p99), Tone.STRONG if tone is Tone.TEXT else tone))


def _p50_p99(label: str, latency: Latency | None, target_s: float | None) -> Line:
    p50 = text.p(latency.distribution if latency else None, 0.5)
    line: Line = ((f"{label} p50 ", Tone.MUTED), (text.quantile(p50), Tone.STRONG), *_p99(" ", latency, target_s))
    if latency is not None and latency.source:
        line = (*line, (f" {latency.source}", Tone.MUTED))
    return line


def _goodput(snapshot: Snapshot, narrow: bool) -> Line:
    if snapshot.goodput is None:
        return ()
    worst = snapshot.goodput.worst
    label = "" if narrow else "goodput "
    return ((label, Tone.MUTED), (text.percent1(worst), Tone.MUTED if worst is None else Tone.STRONG))


def _right(status: Status, options: ConsoleOptions, cluster: str, narrow: bool) -> Line:
    runs: list[Run] = []
    if status.paused_s is not None:
        runs.append((f" PAUSED {text.age(status.paused_s)} ", Tone.PAUSED))
    else:
        warn, crit = options.level("age_s")
        words = "no data" if status.age_s is None else text.age(status.age_s) + ("" if narrow else " ago")
        late = status.age_s is not None and warn is not None and status.age_s >= warn
        very = late and crit is not None and status.age_s is not None and status.age_s >= crit
        runs.append((words, Tone.CRITICAL if very else Tone.WARNING if late else Tone.MUTED))
        if not narrow:
            runs.append((f" every {text.interval(status.interval_s)}", Tone.MUTED))
    if status.read_only:
        runs += [(" ▏", Tone.MUTED), ("READ-ONLY ", Tone.READ_ONLY)]
    else:
        runs += [(" ", Tone.TEXT), (f" ARMED {cluster} ", Tone.ARMED)]
    return tuple(runs)


# Findings ------------------------------------------------------------------------------------------------


def worst_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """Findings by severity; within one in the order given."""
    return sorted(findings, key=lambda f: SEVERITY_ORDER.index(f.severity))


def finding_line(finding: Finding, snapshot: Snapshot, width: int) -> Line:
    """One finding in one line: sign, whose, what."""
    tone = TONES[finding.severity]
    runs: list[Run] = [(f" {SYMBOLS[finding.severity]} ", tone)]
    whose = _whose(finding, snapshot)
    if whose:
        runs.append((whose + "  ", Tone.STRONG if finding.severity is not Severity.INFO else Tone.TEXT))
    runs.append((text.clean(finding.text), tone if finding.severity is Severity.CRITICAL else Tone.TEXT))
    if finding.since_s is not None and finding.since_s >= 1:
        runs.append((f"  for {text.age(finding.since_s)}", Tone.MUTED))
    return clip(tuple(runs), width)


def _whose(finding: Finding, snapshot: Snapshot) -> str:
    letters = {Role.PREFILL: "P", Role.DECODE: "D"}
    if finding.worker is not None:
        worker = snapshot.worker(finding.worker)
        role = worker.role if worker else finding.pool
        name = text.middle(text.clean(worker.name if worker else finding.worker), 24)
        return f"{letters[role]} {name}" if role in letters else name
    if finding.pool in letters:
        return f"{finding.pool.value} pool" if finding.pool else ""
    return text.clean(finding.router, 24) if finding.router else ""


def clip(line: Line, width: int) -> Line:
    """``line`` in at most ``width`` cells, with a sign where it was cut."""
    out: list[Run] = []
    used = 0
    for words, tone in line:
        size = line_width(((words, tone),))
        if used + size > width:
            out.append((text.fit(words, width - used), tone))
            break
        out.append((words, tone))
        used += size
    return tuple(out)


def findings_strip(snapshot: Snapshot, height: int, width: int) -> list[Line]:
    """The worst findings in ``height`` lines; a broken config goes first; the last line says how many more."""
    lines: list[Line] = []
    if snapshot.config_error:
        lines.append(clip(((" ✖ config.toml  ", Tone.CRITICAL),
                           (text.clean(snapshot.config_error), Tone.CRITICAL)), width))  # fmt: skip
    found = worst_first(snapshot.findings)
    room = max(0, height - len(lines))
    shown = found[:room]
    for index, finding in enumerate(shown):
        hidden = len(found) - len(shown)
        if index == len(shown) - 1:
            hint = f"{hidden} more  " if hidden else ""
            tail: Line = ((f"  {hint}", Tone.MUTED), ("f", Tone.KEY), (" findings ", Tone.MUTED))
            line = finding_line(finding, snapshot, width - line_width(tail))
            lines.append((*line, (" " * (width - line_width(line) - line_width(tail)), Tone.TEXT), *tail))
        else:
            lines.append(finding_line(finding, snapshot, width))
    if not lines:
        words = "nothing wrong" if any(w.state is not None for w in snapshot.workers) else ""
        lines.append(((f" ✓ {words}" if words else "", Tone.OK),))
    return lines


# Pools ---------------------------------------------------------------------------------------------------


def pool_line(pool: Pool, width: int) -> Line:
    """One pool in one line: usable, running, backlog with its parts, rates, policy."""
    narrow = width < NARROW
    prefill = pool.role is Role.PREFILL
    letter, name = ("P", "PREFILL") if prefill else ("D", "DECODE")
    tone = Tone.PREFILL if prefill else Tone.DECODE
    parts: list[Line] = [
        ((f" {letter if narrow else name} ", tone), _usable(pool, narrow)),
        _labelled("run" if narrow else "running", text.count(pool.running), pool.running_unknown > 0),
        _backlog(pool, narrow),
    ]
    if prefill:
        parts.append(_labelled("infl" if narrow else "inflight", text.count(pool.inflight)))
    if not narrow:
        parts.append(_labelled("KV", text.percent(pool.kv_use)))
    parts.append(((text.si(pool.tokens_per_s), Tone.TEXT), (" tok/s", Tone.MUTED)))
    if pool.draining:
        parts.append(((f"{pool.draining} draining", Tone.INFO),))
    if pool.policy:
        parts.append(((text.clean(pool.policy, 40), Tone.MUTED),))
    return clip(join(parts, "  " if narrow else "   "), width)


def _usable(pool: Pool, narrow: bool) -> Run:
    words = f"{pool.usable}/{pool.total}" + ("" if narrow else " usable")
    if pool.usable_unknown:
        words += f" ({pool.usable_unknown}?)"
    if pool.total and not pool.usable and not pool.usable_unknown:
        return f"✖ {words}", Tone.CRITICAL
    return words, Tone.STRONG if pool.usable == pool.total else Tone.WARNING


def _labelled(label: str, value: str, lower_bound: bool = False) -> Line:
    if value == text.UNKNOWN:
        return ((f"{label} {value}", Tone.MUTED),)
    return ((f"{label} ", Tone.MUTED), (("≥" if lower_bound else "") + value, Tone.TEXT))


def _backlog(pool: Pool, narrow: bool) -> Line:
    backlog = pool.backlog
    line = _labelled("backlog", text.count(backlog.total), backlog.lower_bound)
    if backlog.total is None or not backlog.parts:
        return line
    known = {name: "?" if v is None else text.count(v) for name, v in backlog.parts.items()}
    words = "+".join(known.values()) if narrow else " · ".join(f"{n} {v}" for n, v in known.items())
    return (*line, (f" ({words})", Tone.MUTED))
