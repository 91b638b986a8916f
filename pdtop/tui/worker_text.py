"""Everything the worker screen says in words and small tables; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pdtop.cluster.model import Finding, Latency, Role, RouterOpinion, Worker
from pdtop.metrics.distribution import Distribution
from pdtop.tui import text
from pdtop.tui.judge import by_level, router_words, state_words
from pdtop.tui.options import ConsoleOptions
from pdtop.tui.tones import SYMBOLS, TONES, Line, Run, Tone

ROLE_NAMES = {
    Role.PREFILL: ("PREFILL", Tone.PREFILL),
    Role.DECODE: ("DECODE", Tone.DECODE),
    Role.UNIFIED: ("UNIFIED", Tone.STRONG),
    Role.UNKNOWN: ("UNKNOWN ROLE", Tone.MUTED),
}

#: Bars of the little tables, cells.
BAR = 12

#: One cell of a little table: its words and its tone.
Cell = Run


def title_lines(worker: Worker, findings: Sequence[Finding]) -> list[Line]:
    """Who it is and how it is: three lines."""
    role, tone = ROLE_NAMES[worker.role]
    first: Line = ((f" {role} ", tone), (text.clean(worker.name), Tone.STRONG), ("   ", Tone.MUTED),
                   state_words(worker, tuple(findings)), ("   ", Tone.MUTED), *_usable(worker))  # fmt: skip
    lines = [first, _source_line(worker)]
    worst = next((f for f in findings), None)
    if worker.reason:
        lines.append(((" ", Tone.TEXT), (text.clean(worker.reason), Tone.WARNING)))
    elif worst is not None:
        lines.append(
            ((f" {SYMBOLS[worst.severity]} ", TONES[worst.severity]), (text.clean(worst.text), Tone.TEXT))
        )
    else:
        lines.append(())
    return lines


def _usable(worker: Worker) -> Line:
    if worker.usable is None:
        return (("usable ?", Tone.MUTED),)
    if worker.usable:
        return (("usable", Tone.OK),)
    because = f": {text.clean(worker.unusable_because)}" if worker.unusable_because else ""
    return ((f"not usable{because}", Tone.INFO if worker.draining else Tone.WARNING),)


def _source_line(worker: Worker) -> Line:
    who = worker.identity
    parts = [
        f"SGLang {who.version}" if who.version else "",
        who.model or "",
        " ".join(
            f"{label}{size}"
            for label, size in (("TP", who.tp_size), ("PP", who.pp_size), ("DP", who.dp_size))
            if size
        ),
        f"{who.transfer_backend} transfer" if who.transfer_backend else "",
        f"numbers {text.age(worker.age_s)} old from {worker.source or 'its page'}"
        if worker.age_s is not None
        else "",
    ]
    return (
        (
            " " + "  ·  ".join(text.clean(p, 80) for p in parts if p),
            Tone.STALE if worker.stale else Tone.MUTED,
        ),
    )


def sections(worker: Worker, findings: Sequence[Finding], options: ConsoleOptions) -> list[Line]:
    """The scrolling part: what is wrong, queues, latencies, stages, ranks, router, identity, page."""
    blocks = [
        _findings(findings),
        _now(worker, options),
        _latencies(worker),
        _stages(worker.stages),
        _ranks(worker, options),
        _routers(worker.opinions),
        _identity(worker),
    ]
    out: list[Line] = []
    for block in blocks:
        if block:
            out += [*block, ()]
    return out


def _heading(words: str) -> Line:
    return ((f" {words}", Tone.COLUMN),)


def _findings(findings: Sequence[Finding]) -> list[Line]:
    out: list[Line] = []
    for finding in findings:
        out.append(
            (
                (f" {SYMBOLS[finding.severity]} ", TONES[finding.severity]),
                (text.clean(finding.text), Tone.STRONG),
            )
        )
        if finding.evidence:
            out.append((("   seen  ", Tone.MUTED), (text.clean(finding.evidence), Tone.TEXT)))
        if finding.fix:
            out.append((("   do    ", Tone.MUTED), (text.clean(finding.fix), Tone.TEXT)))
    return out


def _now(worker: Worker, options: ConsoleOptions) -> list[Line]:
    """Requests by where they are, with bars on one scale."""
    rows: list[tuple[str, float | None]] = [("running", worker.running)]
    rows += [(name, value) for name, value in worker.backlog.parts.items()]
    if worker.role is Role.PREFILL:
        rows.append(("inflight", worker.inflight))
    if worker.retracted is not None:
        rows.append(("retracted", worker.retracted))
    full = text.nice_ceiling(max((v for _, v in rows if v is not None), default=0.0), 10.0)
    lines = [_heading("REQUESTS")]
    for name, value in rows:
        lines.append(((f"   {name:<12}", Tone.MUTED), (f"{text.count(value):>6} ", _tone(value)),
                      (text.bar(value, full, BAR), Tone.BAR)))  # fmt: skip
    kv_tone = by_level(worker.kv_use, options.level("kv_use"))
    lines += [
        _pair("KV memory", text.percent(worker.kv_use), kv_tone, _kv_note(worker)),
        _pair("prefix hits", text.percent(worker.hit_rate), _tone(worker.hit_rate)),
        _pair("tokens/s", text.si(worker.tokens_per_s), _tone(worker.tokens_per_s)),
        _pair("requests/s", text.si(worker.requests_per_s), _tone(worker.requests_per_s)),
        _pair("share", text.percent(worker.share), _tone(worker.share), f"weight {worker.weight:g}"),
    ]
    return lines


def _tone(value: float | None) -> Tone:
    return Tone.MUTED if value is None else Tone.TEXT


def _pair(name: str, value: str, tone: Tone, note: str = "") -> Line:
    return ((f"   {name:<12}", Tone.MUTED), (f"{value:>6}", tone), (f" {note}" if note else "", Tone.MUTED))


def _kv_note(worker: Worker) -> str:
    notes = []
    if worker.kv_worst_rank is not None and worker.kv_use_worst is not None:
        notes.append(f"fullest rank {text.clean(worker.kv_worst_rank)}: {text.percent(worker.kv_use_worst)}")
    if worker.identity.kv_capacity_tokens:
        notes.append(f"of {text.si(worker.identity.kv_capacity_tokens)} tokens")
    return " ".join(notes)


def table(titles: Sequence[str], widths: Sequence[int], rows: Iterable[Sequence[Cell]]) -> list[Line]:
    """A little table: the first column left, the others right."""
    out: list[Line] = [
        tuple(
            (text.fit(t, w, "left" if i == 0 else "right") + " ", Tone.COLUMN)
            for i, (t, w) in enumerate(zip(titles, widths, strict=True))
        )
    ]
    for row in rows:
        out.append(tuple(
            (text.fit(words, w, "left" if i == 0 else "right") + " ", tone)
            for i, ((words, tone), w) in enumerate(zip(row, widths, strict=True))
        ))  # fmt: skip
    return out


def _distribution(name: str, d: Distribution | None, unit: float = 1.0) -> list[Cell]:
    """Name, p50, p90, p99, mean and count of a distribution; ``unit`` seconds to one of its units."""

    def words(q: float) -> Cell:
        found = text.p(d, q)
        if found is None:
            return text.UNKNOWN, Tone.MUTED
        if unit != 1.0 and not found.at_least and found.below is None:
            return text.seconds(found.value * unit), Tone.TEXT
        if unit != 1.0:
            bound = found.value if found.at_least else found.below or 0.0
            return ("≥" if found.at_least else "<") + text.seconds(bound * unit), Tone.TEXT
        return text.quantile(found), Tone.TEXT

    mean = d.mean * unit if d is not None and d.mean is not None else None
    number = d.count if d is not None else None
    return [
        (f"   {text.clean(name, 40)}", Tone.MUTED), words(0.5), words(0.9), words(0.99),
        (text.seconds(mean), _tone(mean)), (text.count(number), _tone(number)),
    ]  # fmt: skip


_LATENCY_TITLES = ("   ", "p50", "p90", "p99", "mean", "count")
_LATENCY_WIDTHS = (30, 8, 8, 8, 8, 7)


def _latencies(worker: Worker) -> list[Line]:
    rows: list[list[Cell]] = []

    def add(name: str, latency: Latency | None) -> None:
        if latency is None:
            return
        rows.append(_distribution(name, latency.distribution))
        for kind, split in (("streaming", latency.streaming), ("not streaming", latency.non_streaming)):
            if split is not None:
                rows.append(_distribution(f"  {kind}", split))

    add("time to first token", worker.ttft)
    add("time per output token", worker.tpot)
    add("queue", worker.queue_time)
    if worker.kv_transfer_ms is not None:
        rows.append(_distribution("KV transfer", worker.kv_transfer_ms, 0.001))
    if not rows:
        return []
    return [*table((" LATENCY in the window", *_LATENCY_TITLES[1:]), _LATENCY_WIDTHS, rows)]


def _stages(stages: Mapping[str, Distribution]) -> list[Line]:
    if not stages:
        return []
    rows = [_distribution(name.replace("_", " "), d) for name, d in stages.items()]
    return table((" STAGES", *_LATENCY_TITLES[1:]), _LATENCY_WIDTHS, rows)


def _ranks(worker: Worker, options: ConsoleOptions) -> list[Line]:
    if len(worker.ranks) < 2 and worker.ranks_expected in (None, 1):
        return []
    level = options.level("kv_use")
    rows: list[list[Cell]] = []
    for rank in worker.ranks:
        backlog = ("≥" if rank.backlog.lower_bound else "") + text.count(rank.backlog.total)
        parts = "+".join("?" if v is None else text.count(v) for v in rank.backlog.parts.values())
        rows.append([
            (f"   rank {text.clean(rank.dp_rank) or '–'}", Tone.MUTED),
            (text.count(rank.running), _tone(rank.running)),
            (backlog, _tone(rank.backlog.total)), (parts, Tone.MUTED),
            (text.percent(rank.kv_use), by_level(rank.kv_use, level)),
            (text.si(rank.tokens_per_s), _tone(rank.tokens_per_s)),
            (text.age(rank.age_s), _tone(rank.age_s)),
        ])  # fmt: skip
    title = f" RANKS {len(worker.ranks)}" + (f" of {worker.ranks_expected}" if worker.ranks_expected else "")
    return table((title, "run", "backlog", "parts", "KV", "tok/s", "age"), (16, 6, 8, 10, 6, 8, 6), rows)


def _routers(opinions: Sequence[RouterOpinion]) -> list[Line]:
    if not opinions:
        return []
    rows: list[list[Cell]] = []
    for o in opinions:
        breaker = o.breaker.value.replace("_", " ") if o.breaker else text.UNKNOWN
        if o.breaker is not None and o.breaker_since_s is not None:
            breaker += f" {text.age(o.breaker_since_s)}"
        rows.append([
            (f"   {text.middle(text.clean(o.router), 30)}", Tone.MUTED), router_words((o,)),
            (breaker, _tone(0.0 if o.breaker else None)),
            (text.count(o.inflight), _tone(o.inflight)), (text.si(o.load), _tone(o.load)),
            (text.si(o.requests_per_s), _tone(o.requests_per_s)), (text.percent(o.share), _tone(o.share)),
            (text.percent(o.failure_rate), _tone(o.failure_rate)),
        ])  # fmt: skip
    titles = (" ROUTER'S VIEW", "health", "breaker", "inflight", "load", "req/s", "share", "failed")
    return table(titles, (34, 10, 14, 8, 7, 7, 6, 6), rows)


def _identity(worker: Worker) -> list[Line]:
    who = worker.identity
    pairs: list[tuple[str, str]] = [
        ("address", worker.key),
        ("bootstrap port", "" if who.bootstrap_port is None else str(who.bootstrap_port)),
        ("max running", "" if who.max_running_requests is None else str(who.max_running_requests)),
        ("restarts seen", str(worker.resets) if worker.resets else ""),
        ("failed transfers", text.count(worker.transfer_failures) if worker.transfer_failures else ""),
        *((key, value) for key, value in who.flags.items()),
    ]
    page = worker.page
    if page is not None:
        words = f"{page.lines} lines, {text.si(page.bytes)}B"
        words += f", {page.bad_lines} bad" if page.bad_lines else ""
        words += f", {page.duplicates} repeated" if page.duplicates else ""
        pairs.append(("metrics page", words))
    return [_heading("IDENTITY")] + [
        ((f"   {text.fit(text.clean(key, 60), 28)} ", Tone.MUTED), (text.clean(value), Tone.TEXT))
        for key, value in pairs
        if value
    ]
