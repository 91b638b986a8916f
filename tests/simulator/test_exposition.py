"""The metric registry: what it writes is what prometheus-client writes and reads."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from pdtop.simulator.exposition import Family, Registry, number

FAMILIES = {
    "up": Family("x:up", "gauge", "Up."),
    "done": Family("x:done_total", "counter", "Done."),
    "time": Family("x:time_seconds", "histogram", "Time.", (0.1, 1.0, 1e6)),
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0"),
        (0.1, "0.1"),
        (123456, "123456.0"),
        (999999.5, "999999.5"),
        (1e6, "1e+06"),
        (1234567, "1.234567e+06"),
        (-1234567, "-1234567.0"),
        (1e-7, "1e-07"),
        (inf, "+Inf"),
        (-inf, "-Inf"),
        (nan, "NaN"),
    ],
)
def test_numbers_are_written_as_prometheus_client_writes_them(value: float, text: str) -> None:
    assert number(value) == text


def test_what_has_no_sample_is_absent() -> None:
    registry = Registry(FAMILIES)
    registry.value("up", {"a": "b"}).value = 3
    assert registry.render() == b'# HELP x:up Up.\n# TYPE x:up gauge\nx:up{a="b"} 3.0\n'


def test_a_histogram_reads_back() -> None:
    registry = Registry(FAMILIES)
    histogram = registry.histogram("time", {"rank": "0"})
    for value, times in ((0.1, 1), (0.5, 3), (2e6, 1)):
        histogram.observe(value, times)
    (family,) = read_text(registry.render().decode())
    samples = {(s.name, s.labels.get("le")): s.value for s in family.samples}
    assert family.type == "histogram"
    assert samples[("x:time_seconds_bucket", "0.1")] == 1
    assert samples[("x:time_seconds_bucket", "1.0")] == 4
    assert samples[("x:time_seconds_bucket", "1e+06")] == 4
    assert samples[("x:time_seconds_bucket", "+Inf")] == 5 == samples[("x:time_seconds_count", None)]
    assert samples[("x:time_seconds_sum", None)] == pytest.approx(0.1 + 1.5 + 2e6)
    histogram.observe(0.05)
    (family,) = read_text(registry.render().decode())
    assert max(s.value for s in family.samples if s.name.endswith("_count")) == 6


def test_hostile_label_values_read_back() -> None:
    registry = Registry(FAMILIES)
    name = 'a"b\\c\nd{}'
    registry.value("up", {"model": name}).value = nan
    (family,) = read_text(registry.render().decode())
    assert family.samples[0].labels == {"model": name}
    assert isnan(family.samples[0].value)


def test_openmetrics_has_an_end_and_counters_without_total() -> None:
    registry = Registry(FAMILIES)
    registry.value("done", {}).value = 2
    text = registry.render(openmetrics=True).decode()
    assert text.endswith("# EOF\n")
    (family,) = read_openmetrics(text)  # type: ignore[no-untyped-call]
    assert (family.name, family.type, family.samples[0].name) == ("x:done", "counter", "x:done_total")
