"""From a worker's numbers to the tone of a cell: levels, targets, states; pure."""

from __future__ import annotations

from pdtop.cluster.model import READABLE, Breaker, Finding, Health, RouterOpinion, State, Worker
from pdtop.tui.options import Level
from pdtop.tui.text import clean
from pdtop.tui.tones import SEVERITY_ORDER, SYMBOLS, TONES, Run, Tone

#: Reading states in a table cell: symbol, word (at most seven cells), tone.
_STATES: dict[State, tuple[str, str, Tone]] = {
    State.OK: ("", "ok", Tone.OK),
    State.OK_WITH_WARNINGS: ("", "ok ~", Tone.OK),
    State.PARTIAL: ("▲", "partial", Tone.WARNING),
    State.AUTH: ("✖", "auth", Tone.CRITICAL),
    State.METRICS_DISABLED: ("▲", "no page", Tone.WARNING),
    State.NOT_METRICS: ("✖", "no data", Tone.CRITICAL),
    State.REDIRECT: ("✖", "moved", Tone.CRITICAL),
    State.HTTP_ERROR: ("✖", "http", Tone.CRITICAL),
    State.TIMEOUT: ("✖", "timeout", Tone.CRITICAL),
    State.REFUSED: ("✖", "refused", Tone.CRITICAL),
    State.TLS: ("✖", "tls", Tone.CRITICAL),
    State.FROZEN: ("✖", "frozen", Tone.CRITICAL),
}

#: Findings in a table cell; any other kind is shown by its own first letters.
_KINDS: dict[str, str] = {
    "backlog_growing": "growing",
    "bad_lines": "lines",
    "bootstrap_backlog": "boot",
    "breaker_half_open": "half",
    "breaker_open": "breaker",
    "dead_but_routed": "dead",
    "failing_requests": "failing",
    "hot_worker": "hot",
    "kv_nearly_full": "kv full",
    "kv_pressure": "kv full",
    "loads_unknown": "loads",
    "metrics_disabled": "no page",
    "not_in_router": "absent",
    "rank_imbalance": "ranks",
    "running_without_progress": "stuck",
    "slow_worker": "slow",
    "transfer_failures": "sending",
    "transfer_stalled": "stall",
    "unusable_in_router": "unused",
}


def state_words(worker: Worker, findings: tuple[Finding, ...]) -> Run:
    """The state cell: the reading's state, then draining, then the worst finding, then the router's no."""
    if worker.state is None:
        return "… asking", Tone.MUTED
    if worker.state not in READABLE:
        symbol, word, tone = _STATES[worker.state]
        return symbol + " " + word, tone
    if worker.draining:
        return "◌ drain", Tone.INFO
    for severity in SEVERITY_ORDER[:2]:
        for finding in findings:
            if finding.severity is severity:
                word = clean(_KINDS.get(finding.kind, finding.kind.replace("_", " ")))[:7]
                return f"{SYMBOLS[severity]} {word}", TONES[severity]
    if worker.usable is False:
        return "▲ unused", Tone.WARNING
    symbol, word, tone = _STATES[worker.state]
    return (symbol + " " + word).strip(), tone


def state_names(worker: Worker, findings: tuple[Finding, ...]) -> frozenset[str]:
    """Every word under which a filter finds this state; ``ok`` only if the cell says so too."""
    words, tone = state_words(worker, findings)
    shown = words.split(" ", 1)[-1] if tone is not Tone.OK else "ok"
    names = {shown, *(f.kind for f in findings)}
    if worker.state is not None and worker.state not in READABLE:
        names |= {worker.state.value, "down"}
    if worker.draining:
        names.add("draining")
    if worker.stale:
        names.add("stale")
    return frozenset(names)


def state_rank(worker: Worker, findings: tuple[Finding, ...]) -> float:
    """For sorting by state: how bad, worst highest."""
    order = (Tone.OK, Tone.MUTED, Tone.INFO, Tone.WARNING, Tone.CRITICAL)
    return float(order.index(state_words(worker, findings)[1]))


def router_words(opinions: tuple[RouterOpinion, ...]) -> Run:
    """The routers' view in one cell: the worst opinion of all replicas."""
    if not opinions:
        return "–", Tone.MUTED
    return max((_opinion_words(o) for o in opinions), key=lambda run: _OPINION_ORDER[run[1]])


def router_rank(opinions: tuple[RouterOpinion, ...]) -> float | None:
    """For sorting by the routers' view: how bad, worst highest; None without one."""
    words, tone = router_words(opinions)
    return None if words == "–" else float(_OPINION_ORDER[tone])


_OPINION_ORDER = {Tone.MUTED: 0, Tone.OK: 1, Tone.INFO: 2, Tone.WARNING: 3, Tone.CRITICAL: 4}


def _opinion_words(opinion: RouterOpinion) -> Run:
    if not opinion.listed:
        return "✖ absent", Tone.CRITICAL
    if opinion.breaker is Breaker.OPEN:
        return "✖ open", Tone.CRITICAL
    if opinion.health is Health.UNHEALTHY:
        return "✖ failing", Tone.CRITICAL
    if opinion.breaker is Breaker.HALF_OPEN:
        return "▲ half", Tone.WARNING
    if opinion.health is Health.DRAINING:
        return "◌ drain", Tone.INFO
    if opinion.health is Health.PENDING:
        return "◌ pending", Tone.INFO
    if opinion.health is Health.HEALTHY or opinion.breaker is Breaker.CLOSED:
        return "✓ ok", Tone.OK
    return "–", Tone.MUTED


def by_level(value: float | None, level: Level, calm: Tone = Tone.TEXT) -> Tone:
    """The tone of ``value``; with warning above critical, low values are the bad ones."""
    if value is None:
        return Tone.MUTED
    warn, crit = level
    low_is_bad = warn is not None and crit is not None and warn > crit

    def reached(limit: float | None) -> bool:
        return limit is not None and (value <= limit if low_is_bad else value >= limit)

    return Tone.CRITICAL if reached(crit) else Tone.WARNING if reached(warn) else calm


def by_target(value_s: float | None, target_s: float | None, level_ms: Level) -> Tone:
    """The tone of a latency: over the SLO target is a warning; levels from config go first."""
    tone = by_level(None if value_s is None else value_s * 1000, level_ms)
    if tone is Tone.TEXT and value_s is not None and target_s is not None and value_s > target_s:
        return Tone.WARNING
    return tone
