"""A router's page of either kind: its own metrics, or its workers' metrics merged (``/engine_metrics``)."""

from __future__ import annotations

from dataclasses import replace

from pdtop.cluster.answers import KeyUse
from pdtop.cluster.interpret_router import router_metrics_reading
from pdtop.cluster.model import State
from pdtop.cluster.readings import Answer, RouterMetricsReading
from pdtop.metrics.router_page import RouterPageReader
from pdtop.metrics.worker_page import WorkerPageReader


def page_reading(
    answer: Answer, own: RouterPageReader, engines: WorkerPageReader, keys: KeyUse
) -> RouterMetricsReading:
    """Read the page as both; the series tell which it is. Readers are that router's own.

    An aggregate page in which no engine's series stands is not metrics, however well-formed: it is a wrong
    port, or no worker of it was started with metrics.
    """
    reading = router_metrics_reading(answer, own, keys)
    if answer.status != 200:
        return reading
    pages = engines.read_aggregate(answer.body, answer.at, truncated=answer.truncated)
    if pages:
        state = State.OK if answer.failure is None else State.PARTIAL
        numbers = reading.numbers if reading.numbers is not None and reading.numbers.family else None
        return RouterMetricsReading(answer.at, state, answer.status, answer.detail, "", numbers, pages)
    if reading.numbers is not None and reading.numbers.family:
        return reading
    return replace(
        reading,
        state=State.NOT_METRICS,
        reason="200, but no engine's series in it",
        fix="start the workers with --enable-metrics; see that the address is the right port",
        numbers=None,
        worker_pages={},
    )
