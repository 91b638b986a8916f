"""A snapshot as a person reads it on a plain terminal: headline, findings, pools, one table a pool; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from pdtop.cluster import words
from pdtop.cluster.model import (
    READABLE,
    Backlog,
    Breaker,
    Finding,
    Health,
    Latency,
    Pool,
    Role,
    Router,
    RouterOpinion,
    Severity,
    Snapshot,
    State,
    Worker,
)

_GAP = 2  # cells between two columns
_MIN_WIDTH = 20

#: Symbol and rich style.
_SIGNS = {
    Severity.CRITICAL: ("✖", "bold red"),
    Severity.WARNING: ("▲", "yellow"),
    Severity.INFO: ("◌", "cyan"),
}
_LETTERS = {Role.PREFILL: "P ", Role.DECODE: "D "}


def render(snapshot: Snapshot, width: int, colour: bool = True) -> Text:
    """All of it in lines of at most ``width`` cells (20 at least); without ``colour`` no styles at all."""
    width = max(width, _MIN_WIDTH)
    blocks = [_headline(snapshot, width), [*_findings(snapshot, width), *_drift(snapshot, width)]]
    for title, pool, columns in (
        ("PREFILL", snapshot.prefill, _PREFILL),
        ("DECODE", snapshot.decode, _DECODE),
    ):
        workers = snapshot.pool_workers(pool.role)
        blocks.append(
            [*_pool(title, pool, width), *_table(workers, columns, width), *_notes(workers, snapshot, width)]
        )
    others = (*snapshot.pool_workers(Role.UNIFIED), *snapshot.pool_workers(Role.UNKNOWN))
    if others:
        blocks.append(
            [Text("OTHER", style="bold"), *_table(others, _OTHER, width), *_notes(others, snapshot, width)]
        )
    lines: list[Text] = []
    for block in blocks:
        lines += [Text(), *block] if lines and block else block
    text = Text("\n", no_wrap=True).join(lines)
    return text if colour else Text(text.plain, no_wrap=True)


# Lines ---------------------------------------------------------------------------------------------------


def _run(*parts: str | tuple[str, str]) -> Text:
    """Words and (words, style) pairs as one piece."""
    return Text.assemble(*parts)


def _flow(pieces: Iterable[Text], width: int, gap: int = 1, indent: int = 0) -> list[Text]:
    """``pieces`` with ``gap`` spaces between them, in lines of ``width``; lines after the first are indented.

    A piece that is wider than a line is cut in two.
    """
    lines: list[Text] = []
    line, empty = Text(), True
    for piece in pieces:
        if not empty and line.cell_len + gap + piece.cell_len > width:
            lines.append(line)
            line, empty = Text(" " * indent), True
        line = line + (piece if empty else Text(" " * gap) + piece)
        empty = False
        while line.cell_len > width:
            head, rest = line.divide([max(1, len(chop_cells(line.plain, width)[0]))])
            lines.append(head)
            line = Text(" " * indent) + rest
    return [*lines, line]


def _wrap(text: Text, width: int, indent: int) -> list[Text]:
    return _flow(text.split(" "), width, indent=indent)


# Headline and findings -----------------------------------------------------------------------------------


def _headline(snapshot: Snapshot, width: int) -> list[Text]:
    pieces = [Text(words.clean(snapshot.cluster), style="bold")]
    pieces += [_router(router) for router in snapshot.routers] or [Text("no router", style="dim")]
    pieces.append(_run(f"{_usable(snapshot.prefill)}P {_usable(snapshot.decode)}D usable"))
    pieces.append(Text(f"window {words.span(snapshot.window_s)}", style="dim"))
    ages = [worker.age_s for worker in snapshot.workers if worker.age_s is not None]
    if ages:
        pieces.append(Text(f"oldest numbers {words.span(max(ages))}", style="dim"))
    numbers = [_latency("TTFT", snapshot.ttft), _latency("TPOT", snapshot.tpot)]
    if snapshot.ttft_prefill_part is not None or snapshot.ttft_decode_part is not None:
        parts = (("prefill", snapshot.ttft_prefill_part), ("decode", snapshot.ttft_decode_part))
        p99s = " · ".join(f"{name} {words.quantile(part, 0.99)}" for name, part in parts)
        numbers.append(Text(f"TTFT parts p99 {p99s}", style="dim"))
    if snapshot.goodput is not None:
        numbers.append(_run("goodput ", (words.percent(snapshot.goodput.worst), "bold")))
    lines = [*_flow(pieces, width, _GAP, indent=2), *_flow(numbers, width, _GAP, indent=2)]
    if snapshot.config_error:
        error = words.clean(snapshot.config_error)
        named = ".toml" in error.split(" ", 1)[0]  # it names the file itself
        lines += _wrap(Text(f"✖ {'' if named else 'config.toml: '}{error}", style="bold red"), width, 2)
    for notice in snapshot.notices:
        lines += _wrap(Text(words.clean(notice), style="dim"), width, 2)
    return lines


def _router(router: Router) -> Text:
    name = words.clean(f"{router.engine} {router.version}" if router.version else router.engine)
    if router.state is not None and router.state not in READABLE:
        return _run(f"{name} ", (f"✖ {_STATES[router.state]}", "bold red"))
    if router.ready is None:
        return _run(f"{name} ", ("ready?", "dim"))
    return _run(f"{name} ", ("● ready", "green") if router.ready else ("✖ not ready", "bold red"))


def _usable(pool: Pool) -> str:
    return str(pool.usable) if pool.usable == pool.total else f"{pool.usable}/{pool.total}"


def _latency(name: str, latency: Latency | None) -> Text:
    source = f" ({words.clean(latency.source)})" if latency is not None and latency.source else ""
    return _run(
        f"{name} p50 ",
        (words.quantile(latency, 0.5), "bold"),
        "  p99 ",
        (words.quantile(latency, 0.99), "bold"),
        (source, "dim"),
    )


def _findings(snapshot: Snapshot, width: int) -> list[Text]:
    lines: list[Text] = []
    for finding in words.worst_first(snapshot.findings):
        sign, style = _SIGNS[finding.severity]
        what = _run((f"{sign} {_whose(finding, snapshot)}", style), words.clean(finding.text))
        lasted = finding.since_s is not None and finding.since_s >= 1
        aside = [f"for {words.span(finding.since_s)}"] if lasted else []
        aside += [words.clean(finding.evidence)] if finding.evidence else []
        if aside:
            what.append(f" ({'; '.join(aside)})", "dim")
        lines += _wrap(what, width, indent=2)
        if finding.fix:
            lines += _wrap(Text(f"  → {words.clean(finding.fix)}"), width, indent=4)
    if lines:
        return lines
    states = [router.state for router in snapshot.routers] + [worker.state for worker in snapshot.workers]
    read = not READABLE.isdisjoint(state for state in states if state is not None)
    none = Text("✓ no findings", style="green") if read else Text("nothing could be read", style="dim")
    return _wrap(none, width, indent=2)


def _drift(snapshot: Snapshot, width: int) -> list[Text]:
    """How much differs, by kind; each difference itself is in the JSON."""
    kinds = Counter(drift.kind.replace("_", " ") for drift in snapshot.drift)
    if not kinds:
        return []
    total = kinds.total()
    many = "1 difference" if total == 1 else f"{total} differences"
    parts = ", ".join(f"{number} {words.clean(kind)}" for kind, number in kinds.items())
    return _wrap(Text(f"≠ {many} between config.toml, routers and workers ({parts})"), width, indent=2)


def _whose(finding: Finding, snapshot: Snapshot) -> str:
    if finding.worker is not None:
        worker = snapshot.worker(finding.worker)
        role = worker.role if worker is not None else finding.pool
        letter = _LETTERS.get(role, "") if role is not None else ""
        return f"{letter}{words.clean(worker.name if worker is not None else finding.worker)}: "
    if finding.router:
        return f"{words.clean(finding.router)}: "
    return f"{finding.pool.value} pool: " if finding.pool is not None else ""


# Pools ---------------------------------------------------------------------------------------------------


def _pool(title: str, pool: Pool, width: int) -> list[Text]:
    unknown = f" ({pool.usable_unknown} not known)" if pool.usable_unknown else ""
    down = pool.total > 0 and not pool.usable and not pool.usable_unknown
    running = words.count(pool.running)
    if pool.running_unknown and pool.running is not None:
        running = f"≥ {running}"
    pieces = [
        Text(title, style="bold"),
        Text(f"{pool.usable}/{pool.total} usable{unknown}", style="bold red" if down else ""),
        Text(f"running {running}"),
        Text(f"backlog {_backlog(pool.backlog)}{_parts(pool.backlog)}"),
    ]
    if pool.role is Role.PREFILL:
        pieces += [
            Text(f"inflight {words.count(pool.inflight)}"),
            Text(f"hit {words.percent(pool.hit_rate)}"),
        ]
    pieces += [
        Text(f"KV {words.percent(pool.kv_use)}"),
        Text(f"{words.count(pool.tokens_per_s)} tok/s"),
    ]
    if pool.draining:
        pieces.append(Text(f"{pool.draining} draining", style="cyan"))
    if pool.policy:
        pieces.append(Text(words.clean(pool.policy), style="dim"))
    return _flow(pieces, width, _GAP, indent=2)


def _backlog(backlog: Backlog) -> str:
    total = words.count(backlog.total)
    return f"≥ {total}" if backlog.lower_bound and backlog.total is not None else total


def _parts(backlog: Backlog) -> str:
    if backlog.total is None or not backlog.parts:
        return ""
    return f" ({' · '.join(f'{words.clean(name)} {words.count(v)}' for name, v in backlog.parts.items())})"


def _notes(workers: Iterable[Worker], snapshot: Snapshot, width: int) -> list[Text]:
    """Why a worker cannot be read or used, where no finding says it already."""
    told = {finding.worker for finding in snapshot.findings}
    lines: list[Text] = []
    for worker in workers:
        why = worker.reason or ("" if worker.draining else worker.unusable_because)
        if why and worker.key not in told:
            lines += _wrap(Text(f"  {words.clean(worker.name)}: {words.clean(why)}", style="dim"), width, 4)
    return lines


# Tables --------------------------------------------------------------------------------------------------

_STATES = {
    State.OK: "ok",
    State.OK_WITH_WARNINGS: "ok",
    State.PARTIAL: "partial",
    State.AUTH: "auth",
    State.METRICS_DISABLED: "no page",
    State.NOT_METRICS: "no data",
    State.REDIRECT: "moved",
    State.HTTP_ERROR: "http",
    State.TIMEOUT: "timeout",
    State.REFUSED: "refused",
    State.TLS: "tls",
    State.FROZEN: "frozen",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """``importance``: the lowest number stays longest when the width runs out."""

    title: str
    importance: int
    cell: Callable[[Worker], str]


def _state(worker: Worker) -> str:
    if worker.state is None:
        return "not asked"
    if worker.state not in READABLE:
        return f"✖ {_STATES[worker.state]}"
    if worker.draining:
        return "◌ drain"
    if worker.usable is False:
        return "▲ unusable"
    if worker.stale:
        return "▲ stale"
    word = _STATES[worker.state]
    return word if word == "ok" else f"▲ {word}"


def _style(worker: Worker) -> str:
    if worker.state is None:
        return "dim"
    return {"✖": "red", "▲": "yellow", "◌": "cyan"}.get(_state(worker)[0], "")


def _kv(worker: Worker) -> str:
    """The fullest rank's: it is the one that stops the worker."""
    return words.percent(worker.kv_use if worker.kv_use_worst is None else worker.kv_use_worst)


def _opinion(worker: Worker) -> str:
    """The worst of what the routers say."""
    return max(map(_verdict, worker.opinions), default=(0, words.UNKNOWN))[1]


def _verdict(opinion: RouterOpinion) -> tuple[int, str]:
    if not opinion.listed:
        return 6, "absent"
    if opinion.breaker is Breaker.OPEN:
        return 5, "open"
    if opinion.health is Health.UNHEALTHY:
        return 4, "unhealthy"
    if opinion.breaker is Breaker.HALF_OPEN:
        return 3, "half open"
    if opinion.health in (Health.DRAINING, Health.PENDING):
        return 2, str(opinion.health)
    return (1, "ok") if opinion.health or opinion.breaker else (0, words.UNKNOWN)


_STATE = _Column("STATE", 0, _state)
_RUNNING = _Column("RUN", 1, lambda w: words.count(w.running))
_WAITING = _Column("BACKLOG", 2, lambda w: _backlog(w.backlog))
_KV = _Column("KV", 3, _kv)
_TOKENS = _Column("TOK/S", 6, lambda w: words.count(w.tokens_per_s))
_SHARE = _Column("SHARE", 8, lambda w: words.percent(w.share))
_ROUTER = _Column("ROUTER", 9, _opinion)
_AGE = _Column("AGE", 12, lambda w: words.span(w.age_s))


def _ttft(importance: int, q: float) -> _Column:
    return _Column(f"TTFT p{q * 100:.0f}", importance, lambda w: words.quantile(w.ttft, q))


def _tpot(importance: int, q: float) -> _Column:
    return _Column(f"TPOT p{q * 100:.0f}", importance, lambda w: words.quantile(w.tpot, q))


_PREFILL = (
    _STATE,
    _RUNNING,
    _WAITING,
    _Column("INFL", 4, lambda w: words.count(w.inflight)),
    _KV,
    _Column("HIT", 7, lambda w: words.percent(w.hit_rate)),
    _TOKENS,
    _Column("QUEUE p99", 5, lambda w: words.quantile(w.queue_time, 0.99)),
    _ttft(11, 0.99),
    _SHARE,
    _ROUTER,
    _AGE,
)
_DECODE = (
    _STATE,
    _RUNNING,
    _WAITING,
    _KV,
    _TOKENS,
    _ttft(10, 0.5),
    _ttft(4, 0.99),
    _tpot(11, 0.5),
    _tpot(5, 0.99),
    _SHARE,
    _ROUTER,
    _AGE,
)
_OTHER = (_STATE, _RUNNING, _WAITING, _KV, _TOKENS, _ttft(4, 0.99), _tpot(5, 0.99), _ROUTER, _AGE)


def _table(workers: Sequence[Worker], columns: Sequence[_Column], width: int) -> list[Text]:
    """Title line and one line a worker: the name, and the most important columns that fit."""
    if not workers:
        return []
    names = [words.clean(worker.name) for worker in workers]
    cells = {column.title: [column.cell(worker) for worker in workers] for column in columns}
    widths = {title: max(map(cell_len, (title, *values))) for title, values in cells.items()}
    longest = max(map(cell_len, ("WORKER", *names)))
    name_width = min(longest, max(21, width // 3), width - 10)
    room = width - name_width
    shown: set[str] = set()
    for column in sorted(columns, key=lambda column: column.importance):
        if widths[column.title] + _GAP > room:
            break
        room -= widths[column.title] + _GAP
        shown.add(column.title)
    name_width = min(longest, name_width + room)
    kept = [column.title for column in columns if column.title in shown]
    lines = [_row("WORKER", name_width, [(title, widths[title]) for title in kept], "dim")]
    for index, worker in enumerate(workers):
        row = [(cells[title][index], widths[title]) for title in kept]
        lines.append(_row(_middle(names[index], name_width), name_width, row, _style(worker)))
    return lines


def _row(name: str, name_width: int, cells: Sequence[tuple[str, int]], style: str) -> Text:
    line = Text(name + " " * (name_width - cell_len(name)), style=style)
    for index, (cell, width) in enumerate(cells):
        pad = " " * (width - cell_len(cell))
        line.append(" " * _GAP + (cell + pad if index == 0 else pad + cell))  # the state stands at the left
    line.rstrip()
    return line


def _middle(text: str, width: int) -> str:
    """``text`` in ``width`` cells with the middle left out: host names differ at both ends."""
    if cell_len(text) <= width:
        return text
    tail = text[-(width // 2) :]
    while cell_len(tail) > width // 2:
        tail = tail[1:]
    return set_cell_size(text, width - cell_len(tail) - 1).rstrip() + "…" + tail
