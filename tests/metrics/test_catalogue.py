"""The catalogue agrees with itself and with the pages of the field."""

from __future__ import annotations

from pdtop.metrics import catalogue as c
from pdtop.metrics.worker_page import WorkerPageReader
from tests.metrics.support import FIXTURES


def test_concepts_and_names_are_unique() -> None:
    for metrics in (c.WORKER_METRICS, c.ROUTER_METRICS):
        assert len({metric.concept for metric in metrics}) == len(metrics)
        for metric in metrics:
            names = [name.text for name in metric.names]
            assert len(set(names)) == len(names) > 0


def test_counters_end_in_total_where_a_type_says_so() -> None:
    for metric in (*c.WORKER_METRICS, *c.ROUTER_METRICS):
        if metric.kind is c.Kind.COUNTER:
            assert metric.names[0].text.endswith("_total")


def test_both_spellings() -> None:
    assert c.spellings(c.Name("token_usage")) == ("sglang:token_usage", "sglang_token_usage")
    assert c.spellings(c.Name("vllm:x")) == ("vllm:x",)
    assert {"sglang:token_usage", "sglang_token_usage"} <= c.WORKER_FAMILIES


def test_who_exports_what() -> None:
    assert not c.exported_by(c.TTFT, "prefill")
    assert c.exported_by(c.TTFT, "decode")
    assert c.exported_by(c.KV_TRANSFER_LATENCY_MS, "prefill")
    assert not c.exported_by(c.KV_TRANSFER_LATENCY_MS, "decode")
    assert not c.exported_by(c.BOOTSTRAP, "unified")


def test_pages_lack_only_what_the_role_does_not_export() -> None:
    """What a busy 0.5.23 worker does not have although its role exports it: events that did not happen."""
    events = {
        c.REALTIME_PREFILL_COMPUTE,
        c.REALTIME_PREFILL_CACHE,
        c.REALTIME_DECODE,
        c.RETRACTED_TOTAL,
        c.ABORTED,
        c.TRANSFER_FAILED,
        c.BOOTSTRAP_FAILED,
        c.CACHED_TOKENS,
        c.TPOT_OLD,
    }
    for role, name in (("prefill", "prefill"), ("decode", "decode"), ("unified", "unified")):
        body = (FIXTURES / "worker" / f"sglang-0.5.23-{name}.metrics.txt").read_bytes()
        plan = WorkerPageReader().read(body, 0.0).plan
        found = plan.values.keys() | plan.histograms.keys()
        for metric in c.WORKER_METRICS:
            if not c.exported_by(metric.concept, role):
                if metric.kind is c.Kind.HISTOGRAM:
                    assert metric.concept not in found, (role, metric.concept)
            elif metric.concept not in events:
                assert metric.concept in found, (role, metric.concept)
