"""Router pages of every family: workers, what the router thinks of them, its own latencies."""

from __future__ import annotations

import pytest

from pdtop.metrics import catalogue as c
from pdtop.metrics.router_page import RouterNumbers, RouterPageReader
from tests.metrics.support import FIXTURES

ROUTER = FIXTURES / "router"


def read(name: str) -> RouterNumbers:
    return RouterPageReader().read((ROUTER / f"{name}.metrics.txt").read_bytes(), 0.0)


def parse(text: str) -> RouterNumbers:
    return RouterPageReader().read(text.encode(), 0.0)


def address(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("name", "family"),
    [("sglang-router-0.3.2-pd", "smg"), ("smg-1.13.0-pd", "smg"), ("vllm-router-0.1.17-pd", "vllm_router")],
)
def test_family_and_workers(name: str, family: str) -> None:
    numbers = read(name)
    assert numbers.family == family
    assert numbers.series > 50
    assert set(numbers.workers) == {
        address(port) for port in (18101, 18102, 18103, 18201, 18202, 18203, 18204)
    }
    assert (numbers.bad_lines, numbers.duplicates, numbers.complete) == (0, 0, True)
    assert set(numbers.pids) == set()


def test_sglang_router_counts_how_requests_ended() -> None:
    numbers = read("sglang-router-0.3.2-pd")
    worker = numbers.worker(address(18202))
    assert worker is not None
    assert (worker.requests, worker.outcomes, worker.failures) == (104, 104, 0)
    assert (worker.inflight, worker.health, worker.breaker, worker.removed) == (0, True, 0, False)
    assert numbers.requests == 410
    assert numbers.selections()["decode", "power_of_two"] == 410
    assert numbers.selections()["prefill", "cache_aware"] == 410
    assert numbers.histogram(c.R_PD_TTFT) is None
    duration = numbers.histogram(c.R_DURATION)
    assert duration is not None and duration.count == 410
    assert numbers.metric(c.R_DURATION) == "smg_router_request_duration_seconds"
    assert set(numbers.histograms_by(c.R_DURATION)) == {"chat", "generate"}
    assert numbers.worker("http://nowhere:1") is None


def test_smg_has_the_time_to_first_token() -> None:
    numbers = read("smg-1.13.0-pd-overloaded")
    ttft, prefill = numbers.histogram(c.R_PD_TTFT), numbers.histogram(c.R_PD_PREFILL)
    assert ttft is not None and (ttft.count, ttft.sum) == (52, 0.632455162)
    assert prefill is not None and prefill.count == 52
    requests = {worker.worker: worker.requests for worker in numbers.each_worker()}
    assert requests[address(18103)] == 20
    assert requests[address(18202)] == 0
    assert numbers.retries == 0


def test_removed_workers_are_marked() -> None:
    """sglang-router 0.3.2 keeps all series of a worker that it has let go."""
    numbers = parse(
        'smg_worker_health{worker="http://d:1"} -1\nsmg_worker_requests_active{worker="http://d:1"} 0\n'
        'smg_worker_cb_outcomes_total{worker="http://d:1",outcome="success"} 9\n'
        'smg_worker_health{worker="http://d:2"} 0\n'
    )
    gone, there = numbers.each_worker()
    assert (gone.removed, gone.health, gone.requests) == (True, None, 9)
    assert (there.removed, there.health, there.requests) == (False, False, None)


def test_breakers_and_failures() -> None:
    for name in ("sglang-router-0.3.2-pd-cb-open", "smg-1.13.0-pd-cb-open"):
        states = {worker.breaker for worker in read(name).each_worker()}
        assert 1 in states, name
    broken = [
        worker for worker in read("sglang-router-0.3.2-pd-cb-open").each_worker() if worker.breaker == 1
    ]
    assert all(worker.failures for worker in broken)


def test_the_vllm_router_tells_the_roles() -> None:
    numbers = read("vllm-router-0.1.17-pd")
    roles = {worker.worker: (worker.role, worker.requests) for worker in numbers.each_worker()}
    assert roles[address(18101)] == ("prefill", 20)
    assert roles[address(18202)] == ("decode", 15)
    assert numbers.requests == 40
    assert numbers.named_counter("vllm_router_pd_requests_total") == 40


def test_old_names_of_the_sglang_router() -> None:
    numbers = parse(
        'sgl_router_pd_prefill_requests_total{worker="http://p:1"} 7\n'
        'sgl_router_pd_decode_requests_total{worker="http://d:1"} 6\n'
        'sgl_router_running_requests{worker="http://d:1"} 2\n'
        'sgl_router_worker_load{worker="http://d:1"} -1\n'
        'sgl_router_worker_health{worker="http://d:1"} 0\n'
        'sgl_router_cb_state{worker="http://d:1"} 2\n'
        'sgl_router_cb_outcomes_total{outcome="failure",worker="http://d:1"} 1\n'
        'sgl_router_cb_outcomes_total{outcome="success",worker="http://d:1"} 5\n'
        'sgl_router_retries_total{route="/generate"} 3\n'
        "sgl_router_active_workers 2\n"
    )
    prefill, decode = numbers.each_worker()[1], numbers.each_worker()[0]
    assert (prefill.role, prefill.requests, prefill.health) == ("prefill", 7, None)
    assert (decode.role, decode.requests, decode.failures, decode.outcomes) == ("decode", 6, 1, 6)
    assert (decode.inflight, decode.load, decode.health, decode.breaker) == (2, None, False, 2)
    assert (numbers.family, numbers.active_workers, numbers.retries) == ("sgl_router", 2, 3)
    assert (numbers.errors, numbers.http_inflight, numbers.named_counter("x")) == (None, None, None)


def test_a_retry_is_counted_once() -> None:
    numbers = parse(
        'smg_worker_retries_total{worker_type="prefill",endpoint="chat"} 3\n'
        'smg_worker_retries_total{worker_type="decode",endpoint="chat"} 2\n'
        'smg_worker_retries_total{worker_type="decode",endpoint="generate"} 2\n'
    )
    assert numbers.retries == 4


SUMMARY = """# TYPE sgl_router_request_duration_seconds summary
sgl_router_request_duration_seconds{route="/generate",quantile="0.5"} 0.25
sgl_router_request_duration_seconds{route="/generate",quantile="0.99"} 2
sgl_router_request_duration_seconds_sum{route="/generate"} 40
sgl_router_request_duration_seconds_count{route="/generate"} 100
sgl_router_request_duration_seconds{route="/health",quantile="0.5"} %s
sgl_router_request_duration_seconds_sum{route="/health"} 1
sgl_router_request_duration_seconds_count{route="/health"} %s
"""


def test_a_summary_is_no_histogram() -> None:
    numbers = parse(SUMMARY % ("NaN", "0"))
    summary = numbers.summary(c.R_DURATION)
    assert summary is not None
    assert (summary.quantile(0.5), summary.quantile(0.99), summary.quantile(0.9)) == (0.25, 2, None)
    assert (summary.count, summary.sum) == (100, 41)
    assert numbers.histogram(c.R_DURATION) is None


def test_quantiles_of_several_routes_do_not_add_up() -> None:
    summary = parse(SUMMARY % ("0.1", "9")).summary(c.R_DURATION)
    assert summary is not None
    assert (summary.quantiles, summary.count) == ((), 109)


def test_a_histogram_is_no_summary() -> None:
    assert read("sglang-router-0.3.2-pd").summary(c.R_DURATION) is None
    assert read("sglang-router-0.3.2-pd-idle").summary(c.R_DURATION) is None


@pytest.mark.parametrize("body", ["", "<html>\n", "sglang:num_running_reqs 5\n"])
def test_no_router_page(body: str) -> None:
    numbers = parse(body)
    assert (numbers.family, numbers.series, numbers.workers, numbers.requests) == ("", 0, (), None)


def test_every_router_fixture_is_read() -> None:
    for path in sorted(ROUTER.glob("*-pd*.metrics.txt")):
        numbers = RouterPageReader().read(path.read_bytes(), 0.0)
        assert numbers.family
        assert bool(numbers.workers) != path.name.endswith("no-workers.metrics.txt")
        for worker in numbers.each_worker():
            assert worker.breaker in (0, 1, 2, None)
            assert worker.requests is None or worker.requests >= 0
