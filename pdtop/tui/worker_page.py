"""The worker page for a width and height: which parts stand where."""

from __future__ import annotations

from pdtop.cluster.model import Role
from pdtop.tui import text
from pdtop.tui.charts import Points
from pdtop.tui.tones import Line, Tone
from pdtop.tui.widgets.chart import Chart, chart_lines
from pdtop.tui.worker_blocks import (
    findings_block,
    head_block,
    identity_block,
    latency_block,
    queue_block,
    rank_block,
    router_block,
    stage_block,
)
from pdtop.tui.worker_lines import BLANK, columns, faded
from pdtop.tui.worker_operations import operation_block
from pdtop.tui.worker_view import WorkerView

#: From these widths on two charts stand beside each other, and the charts stand beside the tables.
TWO_CHARTS_FROM = 96
TABLES_BESIDE_FROM = 170

#: Below this height, or one chart wide, only the most telling charts are drawn.
ALL_CHARTS_FROM = 28
FEW_CHARTS = 3

#: From this height on charts are drawn tall.
TALL_FROM = 50

_LEAD = {
    Role.PREFILL: ("queue_time", "tokens", "backlog", "running", "kv", "ttft"),
    Role.DECODE: ("ttft", "tpot", "backlog", "running", "kv", "tokens"),
}
_ALL = ("ttft", "tpot", "queue_time", "backlog", "running", "kv", "tokens")
_IF_KNOWN = {Role.PREFILL: frozenset({"ttft"})}


def page(view: WorkerView, width: int, height: int) -> list[Line]:
    """All lines of the page, each at most ``width`` cells."""
    inner = width - 2  # a cell of margin on both sides
    top = [head_block(view, inner), findings_block(view, inner), operation_block(view, inner)]
    fade = faded if view.stale else list[Line]
    beside = width >= TABLES_BESIDE_FROM
    each = (inner - 4) // 2 if beside else inner
    charts = charts_block(view, each, height)
    queues, ranks = fade(queue_block(view, each)), fade(rank_block(view, each))
    latencies, stages = fade(latency_block(view, each)), fade(stage_block(view, each))
    routers, identity = router_block(view, each), identity_block(view, each)
    if beside:
        left, right = [charts, ranks, routers], [queues, latencies, stages, identity]
        lines = _stacked([*top, columns([_stacked(left), _stacked(right)], each, gap=4)])
    else:
        lines = _stacked([*top, charts, queues, ranks, latencies, stages, routers, identity])
    margin = [BLANK] if height >= ALL_CHARTS_FROM else []
    return [*margin, *(((" ", Tone.TEXT), *line) if line else BLANK for line in lines)]


def _stacked(blocks: list[list[Line]]) -> list[Line]:
    """Blocks below each other with an empty line between them; empty ones are left out."""
    out: list[Line] = []
    for block in blocks:
        if block:
            out += [BLANK, *block] if out else block
    return out


def charts_block(view: WorkerView, width: int, height: int) -> list[Line]:
    """The charts of the worker's role, in one column or two."""
    across = 2 if width >= TWO_CHARTS_FROM or height >= TALL_FROM else 1
    few = across == 1 or height < ALL_CHARTS_FROM
    rows = 3 if few else 4 if height < TALL_FROM else 8
    charts = charts_of(view)[: FEW_CHARTS if few else None]
    each = (width - 3 * (across - 1)) // across
    drawn = [
        chart_lines(c, each, rows, tick=view.snapshot.number, interval_s=view.interval_s, stale=view.stale)
        for c in charts
    ]
    return _stacked([columns(drawn[i : i + across], each, gap=3) for i in range(0, len(drawn), across)])


def charts_of(view: WorkerView) -> list[Chart]:
    """The charts that say most about a worker of this role, most telling first."""
    role = view.worker.role
    names = [
        n
        for n in _LEAD.get(role, _ALL)
        if n not in _IF_KNOWN.get(role, ()) or any(v is not None for v in view.series.get(n, ()))
    ]
    return [_chart(name, view.series.get(name, ()), view) for name in names]


def _chart(name: str, points: Points, view: WorkerView) -> Chart:
    level = view.options.level
    match name:
        case "ttft":
            title = "TTFT p50" if view.worker.role is not Role.PREFILL else "TTFT p50, prefill part"
            return Chart(title, points, text.seconds, floor=0.1)
        case "tpot":
            return Chart("TPOT p50", points, text.seconds, floor=0.02)
        case "queue_time":
            return Chart("Queue time p50", points, text.seconds, floor=0.1)
        case "tokens":
            what = {Role.PREFILL: "Prompt tokens", Role.DECODE: "Generated tokens"}.get(
                view.worker.role, "Tokens"
            )
            return Chart(what, points, text.si, floor=100.0, mean=True, unit="tok/s")
        case "running":
            return Chart("Running", points, text.count, floor=10.0, mean=True, unit="requests")
        case "backlog":
            return Chart("Backlog", points, text.count, floor=10.0, unit="requests", level=level("backlog"))
        case _:
            return Chart("KV use", points, text.percent, full=1.0, mean=True, level=level("kv_use"))
