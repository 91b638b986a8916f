"""The parts of the worker page as lines for a width: head, findings, queues, ranks, latencies, routers."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len

from pdtop.cluster.model import (
    READABLE,
    Backlog,
    Breaker,
    Health,
    Latency,
    Rank,
    Role,
    RouterOpinion,
    Worker,
)
from pdtop.metrics.distribution import Distribution, Quantile
from pdtop.tui import text
from pdtop.tui.headline import clip
from pdtop.tui.judge import by_level, state_words
from pdtop.tui.lines import line_width
from pdtop.tui.options import Level
from pdtop.tui.tones import SYMBOLS, TONES, Line, Run, Tone
from pdtop.tui.worker_lines import BLANK, Field, heading, in_columns, known, labelled, table
from pdtop.tui.worker_view import WorkerView

ROLE_WORDS = {Role.PREFILL: "PREFILL", Role.DECODE: "DECODE", Role.UNIFIED: "UNIFIED"}
ROLE_TONES = {Role.PREFILL: Tone.PREFILL, Role.DECODE: Tone.DECODE}

#: What a waiting request waits for, by part of the backlog, and what the counts beside it mean.
PART_HELP = {
    "queue": "waiting for the scheduler",
    "bootstrap": "waiting for the decode worker",
    "prealloc": "waiting for KV memory",
    "transfer": "waiting for its KV to arrive",
}

_SIGNS = {Tone.WARNING: "▲ ", Tone.CRITICAL: "✖ "}

#: Cells of the longest bar in the queues.
BAR = 16

_USABLE: Mapping[bool | None, Run] = {
    True: ("usable", Tone.OK),
    False: ("✖ not usable", Tone.WARNING),
    None: ("usable –", Tone.MUTED),
}
_HEALTH: Mapping[Health, Run] = {
    Health.HEALTHY: ("✓ healthy", Tone.OK),
    Health.UNHEALTHY: ("✖ unhealthy", Tone.CRITICAL),
    Health.DRAINING: ("◌ draining", Tone.INFO),
    Health.PENDING: ("◌ pending", Tone.INFO),
}
_BREAKER: Mapping[Breaker, Run] = {
    Breaker.CLOSED: ("✓ closed", Tone.OK),
    Breaker.OPEN: ("✖ open", Tone.CRITICAL),
    Breaker.HALF_OPEN: ("▲ half-open", Tone.WARNING),
}


# Head ----------------------------------------------------------------------------------------------------


def head_block(view: WorkerView, width: int) -> list[Line]:
    """Who it is, how it is, and what to do about it."""
    worker = view.worker
    lines = [_first_line(view, width)]
    if view.gone:
        words = "the cluster no longer has this worker; these are its last numbers"
        lines += labelled("gone    ", words, width, Tone.WARNING)
    lines += labelled("why     ", worker.reason, width)
    lines += labelled("do      ", worker.fix, width, Tone.STRONG)
    if worker.usable is False:
        lines += labelled("unused  ", worker.unusable_because, width)
    lines.append(clip(_who(worker, width), width))
    numbers = clip(_numbers(worker), width)
    lines.append(tuple((words, Tone.STALE) for words, _ in numbers) if view.stale else numbers)
    return lines


def _first_line(view: WorkerView, width: int) -> Line:
    worker = view.worker
    right: Line = ()
    if view.place is not None:
        right = ((f"  {view.place + 1} of {len(view.snapshot.workers)}", Tone.MUTED),)
    state: Run = ("gone", Tone.STALE) if view.gone else state_words(worker, tuple(view.findings))
    pieces: list[Line] = [(state,), (_USABLE[worker.usable],)]
    if worker.draining and worker.state in READABLE and not view.gone and state[1] is not Tone.INFO:
        pieces.append((("◌ draining", Tone.INFO),))
    pieces.append((("age ", Tone.MUTED), (text.age(worker.age_s), _age_tone(view))))
    if worker.source:
        pieces.append((("queues from ", Tone.MUTED), (text.clean(worker.source, 20), Tone.MUTED)))
    role = ROLE_WORDS.get(worker.role, "ROLE –")
    name = text.clean(worker.name)
    while True:  # what is said elsewhere too goes before the name is cut
        rest = [run for piece in pieces for run in (("   ", Tone.TEXT), *piece)]
        room = width - line_width((*rest, *right)) - len(role) - 1
        if cell_len(name) <= room or len(pieces) <= 3:
            break
        pieces.pop()
    shown = text.middle(name, max(12, room))
    head: Line = ((role + " ", ROLE_TONES.get(worker.role, Tone.STRONG)), (shown, Tone.STRONG))
    line = clip((*head, *rest), width - line_width(right))
    return (*line, (" " * (width - line_width((*line, *right))), Tone.TEXT), *right)


def _age_tone(view: WorkerView) -> Tone:
    return Tone.STALE if view.gone else by_level(view.worker.age_s, view.options.level("age_s"))


def _who(worker: Worker, width: int) -> Line:
    who = worker.identity
    sizes = " · ".join(
        f"{name} {text.UNKNOWN if size is None else size}"
        for name, size in (("TP", who.tp_size), ("PP", who.pp_size), ("DP", who.dp_size))
    )
    before: Line = (
        ("SGLang ", Tone.MUTED),
        known(text.clean(who.version or text.UNKNOWN, 16)),
        ("   ", Tone.TEXT),
    )
    after: Line = (
        (f"   {sizes}   KV by ", Tone.MUTED),
        known(text.clean(who.transfer_backend or text.UNKNOWN, 12)),
        ("   weight ", Tone.MUTED),
        (f"{worker.weight:g}", Tone.TEXT),
    )
    room = max(8, width - line_width((*before, *after)))
    return (*before, known(text.middle(text.clean(who.model or text.UNKNOWN), room)), *after)


def _numbers(worker: Worker) -> Line:
    pairs: list[tuple[str, str]] = [
        ("running", text.count(worker.running)),
        ("backlog", _total(worker.backlog)),
        ("KV", text.percent(worker.kv_use)),
        ("hit", text.percent(worker.hit_rate)),
        ("tok/s", text.si(worker.tokens_per_s)),
        ("req/s", text.si(worker.requests_per_s)),
        ("share", text.percent(worker.share)),
    ]
    if worker.resets:
        pairs.append(("▲ restarts", str(worker.resets)))
    runs: list[Run] = []
    for label, value in pairs:
        runs += [(f"{label} ", Tone.MUTED), known(value, Tone.STRONG), ("   ", Tone.TEXT)]
    return tuple(runs[:-1])


def _total(backlog: Backlog) -> str:
    return ("≥" if backlog.lower_bound and backlog.total is not None else "") + text.count(backlog.total)


def findings_block(view: WorkerView, width: int) -> list[Line]:
    """Everything that is wrong with this worker, with evidence and what to do."""
    lines: list[Line] = []
    for finding in view.findings:
        tone = TONES[finding.severity]
        since = "" if finding.since_s is None else f"   for {text.age(finding.since_s)}"
        first, *more = labelled(
            f"{SYMBOLS[finding.severity]} ", finding.text or finding.kind, width - len(since)
        )
        lines.append(((f"{SYMBOLS[finding.severity]} ", tone), *first[1:], (since, Tone.MUTED)))
        lines += more
        lines += labelled("  seen  ", finding.evidence, width, Tone.MUTED)
        lines += labelled("  do    ", finding.fix, width)
    return lines


# Queues and ranks ----------------------------------------------------------------------------------------


def queue_block(view: WorkerView, width: int) -> list[Line]:
    """What runs and what waits for what, with bars on one scale."""
    worker, limits = view.worker, view.worker.identity
    counts = (worker.running, worker.backlog.total, worker.inflight, worker.retracted)
    full = text.nice_ceiling(max((v for v in counts if v is not None), default=0.0), 10.0)
    fields = (Field("", 12, "left"), Field("", 6), Field("", BAR, "left"), Field("", 4, "left"))

    def row(
        label: str, value: float | None, note: str, tone: Tone = Tone.TEXT, words: str = ""
    ) -> list[Line]:
        shown = known(words or text.count(value), tone)
        return [
            ((label, Tone.MUTED),),
            (shown,),
            ((text.bar(value, full, BAR), Tone.BAR),),
            ((note, Tone.MUTED),),
        ]

    limit = limits.max_running_requests
    waiting = worker.backlog
    tone = by_level(waiting.total, view.options.level("backlog"), Tone.STRONG)
    rows = [
        row("running", worker.running, "" if limit is None else f"of {text.count(limit)}"),
        row("backlog", waiting.total, "at least: a part is not exported" if waiting.lower_bound else "", tone,
            _total(waiting)),
    ]  # fmt: skip
    rows += [
        row("  " + text.clean(name, 20), value, PART_HELP.get(name, ""))
        for name, value in waiting.parts.items()
    ]
    if worker.role is Role.PREFILL:
        rows.append(row("inflight", worker.inflight, "KV still being sent"))
        failed = worker.transfer_failures
        bad = Tone.WARNING if failed else Tone.TEXT
        help = (("KV transfers, in the window", Tone.MUTED),)
        rows.append([(("failed", Tone.MUTED),), (known(text.count(failed), bad),), (), help])
    else:
        rows.append(row("retracted", worker.retracted, "put back for lack of KV memory"))
    rows.append(_kv_row(worker, view.options.level("kv_use")))
    note = f"from {text.clean(worker.source, 20)}" if worker.source else ""
    return [heading("QUEUES", note, width), *table(fields, rows, width)[1:]]


def _kv_row(worker: Worker, level: Level) -> list[Line]:
    note: list[Run] = []
    if worker.identity.kv_capacity_tokens is not None:
        note.append((f"of {text.si(worker.identity.kv_capacity_tokens)} tok", Tone.MUTED))
    if worker.kv_worst_rank is not None and len(worker.ranks) > 1:
        worst = by_level(worker.kv_use_worst, level, Tone.MUTED)
        sign = _SIGNS.get(worst, "")
        words = (
            f"{sign}fullest rank {text.clean(worker.kv_worst_rank, 12)}: {text.percent(worker.kv_use_worst)}"
        )
        note += [("   " if note else "", Tone.TEXT), (words, worst)]
    use = known(text.percent(worker.kv_use), by_level(worker.kv_use, level))
    return [(("KV use", Tone.MUTED),), (use,), ((text.bar(worker.kv_use, 1.0, BAR), Tone.BAR),), tuple(note)]


def rank_block(view: WorkerView, width: int) -> list[Line]:
    """One line a DP rank; nothing for a worker that has only one."""
    worker = view.worker
    expected = worker.ranks_expected
    if len(worker.ranks) < 2 and (expected or 1) < 2:
        return []
    names = "+".join(worker.backlog.parts)
    fields = (
        Field("RANK", 4), Field("RUN", 5), Field("BACKLOG", 7), Field(names.upper() or "PARTS", 23, "left"),
        Field("KV", 4), Field("", 10, "left", optional=True), Field("TOK/S", 6),
        Field("HIT", 4, optional=True), Field("AGE", 5, optional=True), Field("", 9, "left"),
    )  # fmt: skip
    rows = [_rank_row(rank, worker, view) for rank in worker.ranks]
    note = f"{len(worker.ranks)}" if expected is None else f"{len(worker.ranks)} of {expected} report"
    lines = [heading("RANKS", note, width), *table(fields, rows, width)]
    if expected is not None and len(worker.ranks) < expected:
        silent = "▲ the totals are a lower bound: not every rank reports"
        lines.append(((f" {silent}", Tone.WARNING),))
    return lines


def _rank_row(rank: Rank, worker: Worker, view: WorkerView) -> list[Line]:
    parts = "+".join("?" if v is None else text.count(v) for v in rank.backlog.parts.values())
    tone = by_level(rank.kv_use, view.options.level("kv_use"))
    fullest = rank.dp_rank == worker.kv_worst_rank
    sign = _SIGNS.get(tone, "◂ ") + "fullest" if fullest else ""
    return [
        ((text.clean(rank.dp_rank, 8) or text.UNKNOWN, Tone.STRONG if fullest else Tone.TEXT),),
        (known(text.count(rank.running)),),
        (known(_total(rank.backlog)),),
        ((parts, Tone.MUTED),),
        ((text.percent(rank.kv_use), tone),),
        ((text.bar(rank.kv_use, 1.0, 10), Tone.BAR),),
        (known(text.si(rank.tokens_per_s)),),
        (known(text.percent(rank.hit_rate)),),
        (known(text.age(rank.age_s), by_level(rank.age_s, view.options.level("age_s"))),),
        ((sign, tone if tone in (Tone.WARNING, Tone.CRITICAL) else Tone.MUTED),),
    ]


# Latencies -----------------------------------------------------------------------------------------------

_LATENCY_FIELDS = (
    Field("", 20, "left"), Field("COUNT", 6), Field("P50", 7), Field("P99", 7), Field("MEAN", 7),
    Field("METRIC", 14, "left"),
)  # fmt: skip


def latency_block(view: WorkerView, width: int) -> list[Line]:
    """Latencies of the window with their source and metric; streaming and not apart where the engine does."""
    worker = view.worker
    rows: list[list[Line]] = []
    prefill = worker.role is Role.PREFILL
    for title, latency, expected in (
        ("TTFT", worker.ttft, not prefill),
        ("TPOT", worker.tpot, not prefill),
        ("queue time", worker.queue_time, prefill),
    ):
        if latency is not None or expected:
            rows += _latency_rows(title, latency)
    transfer = worker.kv_transfer_ms
    if prefill or transfer is not None:
        rows.append([(("KV transfer", Tone.TEXT),), *_figures(transfer, 1e-3), (("", Tone.MUTED),)])
    note = f"of the last {text.age(view.snapshot.window_s)}"
    metric = max(14, width - sum(f.width + 2 for f in _LATENCY_FIELDS[:-1]) - 1)
    for row in rows:
        row[-1] = tuple((text.middle(words, metric), tone) for words, tone in row[-1])
    return [heading("LATENCY", note, width), *table(_LATENCY_FIELDS, rows, width)]


def _latency_rows(title: str, latency: Latency | None) -> list[list[Line]]:
    if latency is None:
        return [[((title, Tone.TEXT),), *_figures(None), ((text.UNKNOWN, Tone.MUTED),)]]
    name = f"{title}, {text.clean(latency.source, 12)}" if latency.source else title
    rows = [[((name, Tone.TEXT),), *_latency_figures(latency), ((text.clean(latency.metric), Tone.MUTED),)]]
    for words, part in (("streaming", latency.streaming), ("not streaming", latency.non_streaming)):
        if part is not None:
            rows.append([((f"  {words}", Tone.MUTED),), *_figures(part), ()])
    return rows


def _latency_figures(latency: Latency) -> list[Line]:
    """As :func:`_figures`; quantiles that the exporter made itself are marked."""
    if not latency.approximate:
        return _figures(latency.distribution)
    about = [text.quantile(latency.quantile(q)) for q in (0.5, 0.99)]
    cells = [text.count(latency.count), *("~" + w if w != text.UNKNOWN else w for w in about)]
    return [(known(words),) for words in (*cells, text.seconds(latency.mean))]


def _figures(distribution: Distribution | None, factor: float = 1.0) -> list[Line]:
    """Count, p50, p99, mean; ``factor`` turns the histogram's unit into seconds."""
    if distribution is None:
        return [((text.UNKNOWN, Tone.MUTED),)] * 4
    mean = distribution.mean
    return [
        (known(text.count(distribution.count)),),
        (known(text.quantile(_scaled(distribution.quantile(0.5), factor))),),
        (known(text.quantile(_scaled(distribution.quantile(0.99), factor)), Tone.STRONG),),
        (known(text.seconds(None if mean is None else mean * factor)),),
    ]


def _scaled(value: Quantile | None, factor: float) -> Quantile | None:
    if value is None or factor == 1.0:
        return value
    return Quantile(
        value.value * factor, value.at_least, None if value.below is None else value.below * factor
    )


def stage_block(view: WorkerView, width: int) -> list[Line]:
    """Where the time of a request goes, in the engine's own stages."""
    stages = view.worker.stages
    if not stages:
        return []
    longest = max((d.sum for d in stages.values()), default=0.0)
    fields = (*_LATENCY_FIELDS[:-1], Field("TIME", 12, "left"))
    fields = (Field("", 26, "left"), *fields[1:])
    rows = [
        [((text.clean(name, 60), Tone.TEXT),), *_figures(d), ((text.bar(d.sum, longest, 12), Tone.BAR),)]
        for name, d in stages.items()
    ]
    note = f"of the last {text.age(view.snapshot.window_s)}"
    return [heading("STAGES", note, width), *table(fields, rows, width)]


# Routers and identity ------------------------------------------------------------------------------------


def router_block(view: WorkerView, width: int) -> list[Line]:
    """What every router says of the worker; never mixed with what it says of itself."""
    fields = (
        Field("ROUTER", 16, "left"), Field("HEALTH", 11, "left"), Field("BREAKER", 18, "left"),
        Field("INFL", 5), Field("SHARE", 5), Field("FAIL", 5), Field("REQ/S", 5, optional=True),
        Field("LOAD", 5, optional=True), Field("WEIGHT", 6, optional=True),
    )  # fmt: skip
    lines = [heading("ROUTERS", "their opinion of this worker", width)]
    if not view.worker.opinions:
        return [*lines, ((" no router says anything of this worker", Tone.MUTED),)]
    spare = width - 1 - sum(f.width + 2 for f in fields) + 2
    name_width = fields[0].width + max(0, min(20, spare))
    fields = (Field("ROUTER", name_width, "left"), *fields[1:])
    return [*lines, *table(fields, [_opinion_row(o, name_width, view) for o in view.worker.opinions], width)]


def _opinion_row(opinion: RouterOpinion, name_width: int, view: WorkerView) -> list[Line]:
    unknown: Run = (text.UNKNOWN, Tone.MUTED)
    health = unknown if opinion.health is None else _HEALTH[opinion.health]
    breaker = unknown if opinion.breaker is None else _BREAKER[opinion.breaker]
    since = "" if opinion.breaker_since_s is None else f" {text.age(opinion.breaker_since_s)}"
    fails = by_level(opinion.failure_rate, view.options.level("failure_rate"))
    return [
        ((text.middle(text.clean(opinion.router.removeprefix("http://")), name_width), Tone.TEXT),),
        (health if opinion.listed else ("✖ absent", Tone.CRITICAL),),
        (breaker, (since, Tone.MUTED)),
        (known(text.count(opinion.inflight)),),
        (known(text.percent(opinion.share)),),
        (known(text.percent(opinion.failure_rate), fails),),
        (known(text.si(opinion.requests_per_s)),),
        (known(text.si(opinion.load)),),
        (known(text.UNKNOWN if opinion.weight is None else f"{opinion.weight:g}"),),
    ]


def identity_block(view: WorkerView, width: int) -> list[Line]:
    """Who the worker says it is, the launch arguments worth showing, and how well its page could be read."""
    worker, who = view.worker, view.worker.identity
    sizes = ["TP", "PP", "DP"], [who.tp_size, who.pp_size, who.dp_size]
    entries: list[tuple[str, str | None]] = [
        ("version", who.version),
        ("model", who.model),
        *((name, _whole(size)) for name, size in zip(*sizes, strict=True)),
        ("transfer backend", who.transfer_backend),
        ("bootstrap port", _whole(who.bootstrap_port)),
        ("max running requests", _whole(who.max_running_requests)),
        ("KV capacity, tokens", _whole(who.kv_capacity_tokens)),
    ]  # fmt: skip
    entries += sorted(who.flags.items())
    count = max(1, (width + 2) // 48)
    each = (width - 2 * (count - 1)) // count
    lines = in_columns([_entry(name, value, each) for name, value in entries], count, each)
    return [heading("IDENTITY", "as the worker says", width), *lines, BLANK,
            heading("PAGE", "", width), clip(_page_facts(worker), width)]  # fmt: skip


def _whole(value: int | None) -> str | None:
    return None if value is None else str(value)


def _entry(name: str, value: str | None, width: int) -> Line:
    label_width = min(42, max(24, width - 22))
    label = text.fit(text.middle(text.clean(name), label_width - 1), label_width)
    words = text.clean(value) if value else text.UNKNOWN
    return ((" " + label, Tone.MUTED), known(text.middle(words, width - label_width - 1)))


def _page_facts(worker: Worker) -> Line:
    status: Run = known("HTTP –" if worker.status is None else f"HTTP {worker.status}")
    missed: Line = ()
    if worker.missed_polls:
        missed = ((f"   {worker.missed_polls} reads without numbers", Tone.WARNING),)
    if worker.page is None:
        return ((" ", Tone.TEXT), status, ("   no page has been read", Tone.MUTED), *missed)
    page = worker.page
    runs: list[Run] = [(" ", Tone.TEXT), status]
    for value, words in ((page.lines, "lines"), (page.bad_lines, "bad"), (page.duplicates, "repeated")):
        wrong = value > 0 and words != "lines"
        shown: Run = (f"▲ {value}", Tone.WARNING) if wrong else (str(value), Tone.TEXT)
        runs += [("   ", Tone.TEXT), shown, (f" {words}", Tone.MUTED)]
    return (*runs, ("   ", Tone.TEXT), (text.si(page.bytes), Tone.TEXT), ("B", Tone.MUTED), *missed)
