"""The words of the overview: top line, findings strip, pool summaries; pure, by width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from pdtop.cluster.model import READABLE, Finding, Latency, Pool, Role, Router, Severity, Snapshot
from pdtop.tui import text
from pdtop.tui.judge import by_level, by_target
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
    """Cluster, engine, P:D usable, headline latencies, goodput; at the right live or paused, age and mode.

    The fullest form that fits ``width`` is taken.
    """
    cluster = text.clean(snapshot.cluster, 24 if width < NARROW else 40)
    for form in FORMS:
        left = join(
            [
                ((" " + cluster, Tone.STRONG),),
                _engine(snapshot.routers, form),
                _ratio(snapshot),
                _headline("TTFT", snapshot.ttft, _target(snapshot, "ttft"), form),
                _headline("TPOT", snapshot.tpot, _target(snapshot, "tpot"), form),
                _goodput(snapshot, form),
            ],
            form.gap,
        )
        right = _right(status, options, cluster, form)
        if line_width(left) + line_width(right) < width:
            break
    return spread(left, right, width)


@dataclass(frozen=True, slots=True)
class Form:
    """How much the top line and the pool lines say."""

    gap: str = "   "
    version: bool = True
    words: bool = True  # "ready", "goodput", "ago"
    source: bool = True
    p50: bool = True
    interval: bool = True
    kv: bool = True  # pool lines: mean KV use
    parts: bool = True  # pool lines: the names of the backlog's parts
    policy: bool = True


#: What is left out one after the other until the line fits.
_LEAVE_OUT: tuple[dict[str, Any], ...] = (
    {"interval": False},
    {"kv": False},
    {"gap": "  "},
    {"words": False},
    {"version": False, "parts": False},
    {"p50": False},
    {"source": False},
    {"gap": " ", "policy": False},
)

#: From the fullest to the leanest.
FORMS = tuple(accumulate(_LEAVE_OUT, lambda form, change: replace(form, **change), initial=Form()))


def _engine(routers: tuple[Router, ...], form: Form) -> Line:
    if not routers:
        return (("no router", Tone.MUTED),)
    worst = min(routers, key=lambda r: (r.ready is True, r.state in READABLE))
    name = worst.engine if not form.version or not worst.version else f"{worst.engine} {worst.version}"
    name = text.clean(name, 24)
    if len(routers) > 1:
        name += f" ×{len(routers)}"
    if worst.state is not None and worst.state not in READABLE:
        sign: Run = (f"✖ {worst.state.value}" if form.words else "✖", Tone.CRITICAL)
    elif worst.ready is None:
        sign = ("?", Tone.MUTED)
    elif worst.ready:
        sign = ("● ready" if form.words else "●", Tone.OK)
    else:
        sign = ("✖ not ready" if form.words else "✖", Tone.CRITICAL)
    return ((name + " ", Tone.TEXT), sign)


def _ratio(snapshot: Snapshot) -> Line:
    """``3P 4D`` usable; with ``of`` where not all are."""
    runs: list[Run] = []
    for pool, letter, tone in ((snapshot.prefill, "P", Tone.PREFILL), (snapshot.decode, "D", Tone.DECODE)):
        number = str(pool.usable) if pool.usable == pool.total else f"{_usable_number(pool)}/{pool.total}"
        if pool.total and not pool.usable and not pool.usable_unknown:
            tone = Tone.CRITICAL
        runs.append((f"{number}{letter}", tone))
    return (runs[0], (" ", Tone.TEXT), runs[1])


def _target(snapshot: Snapshot, which: str) -> float | None:
    goodput = snapshot.goodput
    if goodput is None:
        return None
    return goodput.ttft_target_s if which == "ttft" else goodput.tpot_target_s


def _headline(label: str, latency: Latency | None, target_s: float | None, form: Form) -> Line:
    distribution = latency.distribution if latency else None
    p50, p99 = text.p(distribution, 0.5), text.p(distribution, 0.99)
    tone = by_target(p99.value if p99 else None, target_s, (None, None))
    high: Run = (text.quantile(p99), Tone.STRONG if tone is Tone.TEXT else tone)
    line: Line = ((f"{label} p99 ", Tone.MUTED), high)
    if form.p50:
        low: Run = (text.quantile(p50), Tone.STRONG if p50 else Tone.MUTED)
        line = ((f"{label} p50 ", Tone.MUTED), low, (" p99 ", Tone.MUTED), high)
    if form.source and label == "TTFT" and latency is not None:
        line = (*line, (f" {latency.source}", Tone.MUTED))
    return line


def _goodput(snapshot: Snapshot, form: Form) -> Line:
    if snapshot.goodput is None:
        return ()
    worst = snapshot.goodput.worst
    value: Run = (text.percent1(worst), Tone.MUTED if worst is None else Tone.STRONG)
    return (value,) if not form.p50 else (("goodput " if form.words else "good ", Tone.MUTED), value)


def _right(status: Status, options: ConsoleOptions, cluster: str, form: Form) -> Line:
    runs: list[Run] = []
    if status.paused_s is not None:
        runs.append((f" PAUSED {text.age(status.paused_s)} ", Tone.PAUSED))
    else:
        words = (
            "no data yet" if status.age_s is None else text.age(status.age_s) + (" ago" if form.words else "")
        )
        runs.append((words, by_level(status.age_s, options.level("age_s"), Tone.MUTED)))
        if form.interval:
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
    runs: list[Run] = [(" ", Tone.TEXT), (SYMBOLS[finding.severity], tone), (" ", Tone.TEXT)]
    owner = whose(finding, snapshot)
    if owner:
        runs.append((owner + "  ", Tone.STRONG if finding.severity is not Severity.INFO else Tone.TEXT))
    runs.append((text.clean(finding.text), tone if finding.severity is Severity.CRITICAL else Tone.TEXT))
    if finding.since_s is not None and finding.since_s >= 1:
        runs.append((f"  for {text.age(finding.since_s)}", Tone.MUTED))
    return clip(tuple(runs), width)


def whose(finding: Finding, snapshot: Snapshot) -> str:
    """Whom a finding is about: role letter and worker, pool, or router."""
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
    """The worst findings in ``height`` lines, a broken config first; the last line says how many more."""
    lines: list[Line] = []
    if snapshot.config_error:
        error = text.clean(snapshot.config_error)
        named = ".toml" in error.split(" ", 1)[0]  # it names the file itself
        lines.append(clip(((f" ✖ {'' if named else 'config.toml  '}{error}", Tone.CRITICAL),), width))
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
    for form in FORMS:
        line = join(_pool_parts(pool, form, width < NARROW), form.gap)
        if line_width(line) <= width:
            return line
    return clip(line, width)


def _pool_parts(pool: Pool, form: Form, narrow: bool) -> list[Line]:
    prefill = pool.role is Role.PREFILL
    letter, name = ("P", "PREFILL") if prefill else ("D", "DECODE")
    parts: list[Line] = [
        ((f" {letter if narrow else name} ", Tone.PREFILL if prefill else Tone.DECODE), _usable(pool, form)),
        _labelled("run" if narrow else "running", text.count(pool.running), pool.running_unknown > 0),
        _backlog(pool, form),
    ]
    if prefill:
        parts.append(_labelled("infl" if narrow else "inflight", text.count(pool.inflight)))
    if form.kv:
        parts.append(_labelled("KV", text.percent(pool.kv_use)))
    parts.append(_rate(pool.tokens_per_s))
    if pool.draining:
        parts.append(((f"{pool.draining} draining", Tone.INFO),))
    if pool.policy and form.policy:
        parts.append(((text.clean(pool.policy, 40), Tone.MUTED),))
    return parts


def _rate(tokens_per_s: float | None) -> Line:
    words = text.si(tokens_per_s)
    return ((words, Tone.MUTED if tokens_per_s is None else Tone.TEXT), (" tok/s", Tone.MUTED))


def _usable(pool: Pool, form: Form) -> Run:
    words = f"{_usable_number(pool)}/{pool.total}" + (" usable" if form.words else "")
    if pool.total and not pool.usable and not pool.usable_unknown:
        return f"✖ {words}", Tone.CRITICAL
    if pool.usable_unknown:
        return words, Tone.MUTED
    return words, Tone.STRONG if pool.usable == pool.total else Tone.WARNING


def _usable_number(pool: Pool) -> str:
    """How many are usable, at least; ``?`` before anybody has answered."""
    if not pool.usable_unknown:
        return str(pool.usable)
    return "?" if pool.usable_unknown == pool.total else f"≥{pool.usable}"


def _labelled(label: str, value: str, lower_bound: bool = False) -> Line:
    if value == text.UNKNOWN:
        return ((f"{label} {value}", Tone.MUTED),)
    return ((f"{label} ", Tone.MUTED), (("≥" if lower_bound else "") + value, Tone.TEXT))


def _backlog(pool: Pool, form: Form) -> Line:
    backlog = pool.backlog
    line = _labelled("backlog", text.count(backlog.total), backlog.lower_bound)
    if backlog.total is None or not backlog.parts:
        return line
    known = {name: "?" if v is None else text.count(v) for name, v in backlog.parts.items()}
    words = " · ".join(f"{n} {v}" for n, v in known.items()) if form.parts else "+".join(known.values())
    return (*line, (f" ({words})", Tone.MUTED))
