"""The columns of the pool tables as data: title, width, text, tone, sort value, and which fit a width."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rich.cells import cell_len

from pdtop.cluster.model import Latency, Role, Worker
from pdtop.metrics.distribution import Quantile
from pdtop.tui import text
from pdtop.tui.judge import by_level, by_target, router_rank, router_words, state_rank, state_words
from pdtop.tui.pool_view import PoolView, folded
from pdtop.tui.text import Align
from pdtop.tui.tones import Line, Run, Tone

SortValue = float | str | None
CellMaker = Callable[[Worker, PoolView, int], Line]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``make`` gives runs of at most ``width`` cells; ``stretch``: may take spare room."""

    id: str
    title: str
    width: int
    help: str
    make: CellMaker
    sort: Callable[[Worker, PoolView], SortValue]
    align: Align = "right"
    stretch: bool = False

    def title_in(self, width: int) -> str:
        """The title in at most ``width`` cells: whole, or its first word."""
        return self.title if len(self.title) <= width else text.fit(self.title.split()[0], width).rstrip()

    def cell(self, worker: Worker, view: PoolView) -> Line:
        """The runs of one cell, exactly ``width`` cells wide."""
        return pad(self.make(worker, view, self.width), self.width, self.align)


def pad(line: Line, width: int, align: Align) -> Line:
    """``line`` filled or cut to ``width`` cells."""
    used = sum(cell_len(t) for t, _ in line)
    if used == width:
        return line
    if used > width:
        (last, tone), *before = reversed(line)
        room = width - sum(cell_len(t) for t, _ in before)
        if room <= 0:
            return pad(tuple(reversed(before)), width, align)
        return (*reversed(before), (text.fit(last, room), tone))
    blank = (" " * (width - used), Tone.TEXT)
    return (*line, blank) if align == "left" else (blank, *line)


def _one(words: str, tone: Tone = Tone.TEXT) -> Line:
    return ((words, Tone.MUTED if words == text.UNKNOWN else tone),)


def _name(worker: Worker, view: PoolView, width: int) -> Line:
    tone = Tone.MUTED if worker.state is None else Tone.STRONG
    return ((text.middle(text.clean(worker.name), width), tone),)


def _state(worker: Worker, view: PoolView, width: int) -> Line:
    if worker.key in view.drained:
        return (("◌ drained", Tone.INFO),)
    words, tone = state_words(worker, view.findings_of(worker))
    # Where only eight cells are there the space after the symbol goes, not the end of the word.
    return ((words.replace(" ", "", 1) if len(words) > width else words, tone),)


def _backlog_number(worker: Worker, view: PoolView) -> Run:
    backlog = worker.backlog
    words = text.count(backlog.total)
    if backlog.lower_bound and backlog.total is not None:
        words = "≥" + words
    return words, by_level(backlog.total, view.options.level("backlog"))


def _backlog(worker: Worker, view: PoolView, width: int) -> Line:
    words, tone = _backlog_number(worker, view)
    return _one(words, tone)


def _parts(worker: Worker) -> str:
    parts = worker.backlog.parts.values()
    return "+".join("?" if v is None else text.count(v) for v in parts) if any(parts) else ""


def _backlog_bar(worker: Worker, view: PoolView, width: int) -> Line:
    """Number, bar and parts: ``  12 ████▌ 9+3``."""
    words, tone = _backlog_number(worker, view)
    bar_width = 5
    return (
        *_one(text.fit(words, 4, "right"), Tone.MUTED if words == text.UNKNOWN else tone),
        (" " + text.bar(worker.backlog.total, view.backlog_full, bar_width) + " ", Tone.BAR),
        (text.fit(_parts(worker), width - 6 - bar_width), Tone.MUTED),
    )


def _kv(worker: Worker, view: PoolView, width: int) -> Line:
    """KV use of the worst rank: the first full rank stops the worker."""
    worst = worker.kv_use if worker.kv_use_worst is None else worker.kv_use_worst
    return _one(text.percent(worst, ""), by_level(worst, view.options.level("kv_use")))


def _quantile(latency: Latency | None, q: float) -> Quantile | None:
    return text.p(latency.distribution, q) if latency else None


def _latency_pair(latency: Latency | None, target_s: float | None, view: PoolView, level: str) -> Line:
    p50, p99 = _quantile(latency, 0.5), _quantile(latency, 0.99)
    tone = by_target(p99.value if p99 else None, target_s, view.options.level(level))
    if p50 is None and p99 is None:
        return _one(text.UNKNOWN)
    return ((text.quantile(p50), Tone.TEXT), ("/", Tone.MUTED), (text.quantile(p99), tone))


def _latency_p99(latency: Latency | None, target_s: float | None, view: PoolView, level: str) -> Line:
    p99 = _quantile(latency, 0.99)
    return _one(
        text.quantile(p99), by_target(p99.value if p99 else None, target_s, view.options.level(level))
    )


def _p99_value(latency: Latency | None) -> float | None:
    p99 = _quantile(latency, 0.99)
    return p99.value if p99 else None


def _trend(name: str) -> CellMaker:
    def make(worker: Worker, view: PoolView, width: int) -> Line:
        points = folded(worker.trends.get(name, ()), view.tick, name, width)
        return ((text.sparkline(points, view.full_scale(name), width), Tone.TREND),)

    return make


def _last(name: str) -> Callable[[Worker, PoolView], SortValue]:
    return lambda worker, view: next(
        (v for v in reversed(worker.trends.get(name, ())) if v is not None), None
    )


def _opinion_sum(worker: Worker, field: str) -> float | None:
    values = [v for o in worker.opinions if (v := getattr(o, field)) is not None]
    return sum(values) if values else None


def _worst_failure(worker: Worker) -> float | None:
    return max((o.failure_rate for o in worker.opinions if o.failure_rate is not None), default=None)


def _failures(worker: Worker, view: PoolView, width: int) -> Line:
    rate = _worst_failure(worker)
    return _one(text.percent(rate), by_level(rate, view.options.level("failure_rate")))


def _number(id: str, title: str, width: int, help: str, value: Callable[[Worker], float | None],
            words: Callable[[float | None], str] = text.count, level: str = "") -> Column:  # fmt: skip
    """A column of one plain number."""

    def make(worker: Worker, view: PoolView, width: int) -> Line:
        number = value(worker)
        return _one(words(number), by_level(number, view.options.level(level)) if level else Tone.TEXT)

    return Column(id, title, width, help, make, lambda worker, view: value(worker))


def _trend_column(id: str, title: str, help: str, name: str) -> Column:
    return Column(id, title, 6, help, _trend(name), _last(name), align="left", stretch=True)


NAME = Column("name", "WORKER", 12, "address as written in the config or by the router", _name,
              lambda worker, view: None, align="left")  # fmt: skip

_ALL: tuple[Column, ...] = (
    NAME,
    Column("state", "STATE", 9, "how the newest reading ended, or the worst finding", _state,
           lambda w, v: state_rank(w, v.findings_of(w)), align="left"),
    _number("running", "RUN", 4, "requests in the running batch", lambda w: w.running),
    Column("backlog", "BACK", 4, "requests that wait: all queues of the worker", _backlog,
           lambda w, v: w.backlog.total),
    Column("backlog_bar", "BACKLOG", 18, "requests that wait, and in which queues", _backlog_bar,
           lambda w, v: w.backlog.total, align="left"),
    _number("inflight", "INFL", 4, "prefill done, KV still being sent", lambda w: w.inflight),
    Column("kv", "KV%", 3, "KV memory in use, the fullest rank", _kv,
           lambda w, v: w.kv_use if w.kv_use_worst is None else w.kv_use_worst),
    _number("hit", "HIT%", 4, "prompt tokens found in the prefix cache", lambda w: w.hit_rate,
            lambda r: text.percent(r, ""), "hit_rate"),
    _number("tokens", "TOK/S", 6, "tokens a second: prompt tokens computed (P), generated (D)",
            lambda w: w.tokens_per_s, text.si),
    _number("requests", "REQ/S", 5, "requests a second", lambda w: w.requests_per_s, text.si),
    Column("queue_p99", "QUEUE99", 7, "99 of 100 requests waited less than this in the queue",
           lambda w, v, width: _latency_p99(w.queue_time, None, v, "queue_p99_ms"),
           lambda w, v: _p99_value(w.queue_time)),
    Column("ttft_p99", "TTFT99", 7, "time to first token as this worker saw it, p99",
           lambda w, v, width: _latency_p99(w.ttft, v.ttft_target_s, v, "ttft_p99_ms"),
           lambda w, v: _p99_value(w.ttft)),
    Column("tpot_p99", "TPOT99", 7, "time per output token, p99",
           lambda w, v, width: _latency_p99(w.tpot, v.tpot_target_s, v, "tpot_p99_ms"),
           lambda w, v: _p99_value(w.tpot)),
    Column("ttft", "TTFT 50/99", 12, "time to first token as this worker saw it, p50/p99",
           lambda w, v, width: _latency_pair(w.ttft, v.ttft_target_s, v, "ttft_p99_ms"),
           lambda w, v: _p99_value(w.ttft)),
    Column("tpot", "TPOT 50/99", 11, "time per output token, p50/p99",
           lambda w, v, width: _latency_pair(w.tpot, v.tpot_target_s, v, "tpot_p99_ms"),
           lambda w, v: _p99_value(w.tpot)),
    _number("share", "SHARE", 5, "part of its pool's requests in the window",
            lambda w: w.share, text.percent),
    _number("weight", "W", 4, "weight from config.toml", lambda w: w.weight, lambda v: f"{v:g}"),
    Column("router", "ROUTER", 9, "what the router thinks of it: health and circuit breaker",
           lambda w, v, width: (router_words(w.opinions),), lambda w, v: router_rank(w.opinions),
           align="left"),
    _number("router_inflight", "R.INFL", 6, "requests in flight as the router counts them",
            lambda w: _opinion_sum(w, "inflight")),
    _number("router_load", "R.LOAD", 6, "load as the router sees it",
            lambda w: _opinion_sum(w, "load"), text.si),
    Column("failures", "FAIL%", 5, "failed part of the router's requests to it", _failures,
           lambda w, v: _worst_failure(w)),
    _number("retracted", "RETR", 4, "requests put back for lack of KV memory", lambda w: w.retracted),
    _number("age", "AGE", 6, "age of the numbers in this row", lambda w: w.age_s, text.age, "age_s"),
    _trend_column("queue_trend", "QUEUE TREND", "mean queue time, newest right", "queue_time"),
    _trend_column("tokens_trend", "TOK/S TREND", "tokens a second, newest right", "tokens"),
    _trend_column("ttft_trend", "TTFT TREND", "time to first token, newest right", "ttft"),
    _trend_column("tpot_trend", "TPOT TREND", "time per output token, newest right", "tpot"),
    _trend_column("backlog_trend", "BACKLOG TREND", "requests that wait, newest right", "backlog"),
)  # fmt: skip

COLUMNS: dict[str, Column] = {c.id: c for c in _ALL}

_PREFILL = {
    "narrow": "name state running backlog inflight kv hit queue_p99 share queue_trend",
    "normal": "name state running backlog_bar inflight kv hit tokens queue_p99 share router"
    " queue_trend tokens_trend",
    "wide": "name state running backlog_bar inflight kv hit tokens requests queue_p99 share weight router"
    " router_inflight router_load failures age queue_trend tokens_trend",
}
_DECODE = {
    "narrow": "name state running backlog kv tokens ttft_p99 tpot_p99 share ttft_trend",
    "normal": "name state running backlog_bar kv tokens ttft tpot share router ttft_trend tpot_trend",
    "wide": "name state running backlog_bar kv tokens requests ttft tpot share weight router"
    " router_inflight router_load failures retracted age ttft_trend tpot_trend",
}

#: Column presets, and from which table width each is taken.
PRESETS: dict[str, int] = {"narrow": 0, "normal": 118, "wide": 160}

#: Trend columns grow into spare room up to this many glyphs.
MAX_TREND = 24

#: Cells left of the name: cursor sign and mark.
GUTTER = 2


def preset_for(width: int) -> str:
    """The widest preset that fits ``width`` cells."""
    return max((name for name, least in PRESETS.items() if least <= width), key=PRESETS.__getitem__)


def unknown_columns(ids: Iterable[str]) -> list[str]:
    """Those of ``ids`` that are no columns."""
    return [i for i in ids if i not in COLUMNS]


def chosen(role: Role, preset: str, configured: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns to show: those from the config if there are any, else the preset; the name comes first."""
    names = [i for i in configured if i in COLUMNS and i != NAME.id]
    if names:
        return (NAME, *(COLUMNS[i] for i in names))
    table = _PREFILL if role is Role.PREFILL else _DECODE
    return tuple(COLUMNS[i] for i in table[preset].split())


def name_width(names: Iterable[str], preset: str) -> int:
    """Cells for the name column: the longest name within the preset's limits."""
    limit = {"narrow": 17, "normal": 24, "wide": 32}[preset]
    return max(12, min(limit, max((cell_len(text.clean(n)) for n in names), default=0)))


def laid_out(columns: tuple[Column, ...], width: int, name: int) -> tuple[Column, ...]:
    """``columns`` with their final widths in a table of ``width`` cells; spare room goes to the trends."""
    fixed = [replace(c, width=name) if c.id == NAME.id else c for c in columns]
    spare = width - GUTTER - sum(c.width for c in fixed) - (len(fixed) - 1)
    stretchy = [i for i, c in enumerate(fixed) if c.stretch]
    if not stretchy or spare <= 0:
        return tuple(fixed)
    each, rest = divmod(spare, len(stretchy))
    for position, index in enumerate(stretchy):
        extra = each + (1 if position < rest else 0)
        fixed[index] = replace(fixed[index], width=min(MAX_TREND, fixed[index].width + extra))
    return tuple(fixed)
