"""The page reader against random pages: equal to prometheus-client, steady as cold, and it never raises."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdtop.metrics.exposition import PageReader
from pdtop.metrics.router_page import RouterPageReader
from pdtop.metrics.worker_page import WorkerPageReader
from tests.metrics.support import FIXTURES, Key, content, equal_pages, fresh_reader, oracle, same

KINDS = {
    "sglang:num_running_reqs": "gauge",
    "plain": "untyped",
    "a_total": "counter",
    "b_seconds": "histogram",
    "c:d": "summary",
    "e_count": "gauge",  # looks like a part of a histogram, but is none
}
LABELS = ("model_name", "dp_rank", "tp_rank", "pid", "gt", "x")
VALUE_TEXT = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    ),
    max_size=6,
)
NUMBERS = st.one_of(
    st.integers(-5, 10**12).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e5", "0.0"]),
)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def labels(draw: st.DrawFn) -> list[str]:
    names = draw(st.lists(st.sampled_from(LABELS), unique=True, max_size=4))
    return [f'{name}="{escaped(draw(VALUE_TEXT))}"' for name in names]


@st.composite
def family(draw: st.DrawFn, name: str) -> str:
    kind = KINDS[name]
    samples: list[tuple[str, list[str]]] = []
    for _ in range(draw(st.integers(0, 3))):
        own = draw(labels())
        if kind == "histogram":
            samples += [
                (f"{name}_bucket", [*own, f'le="{bound}"']) for bound in ("0.1", "1.0", "2.5e1", "+Inf")
            ]
        elif kind == "summary":
            samples += [(name, [*own, f'quantile="{quantile}"']) for quantile in ("0.5", "0.99")]
        if kind in ("histogram", "summary"):
            samples += [(f"{name}_sum", own), (f"{name}_count", own)]
        else:
            samples.append((name, own))
    lines = [f"# HELP {name} {escaped(draw(VALUE_TEXT))}", f"# TYPE {name} {kind}"]
    for sample, own in draw(st.permutations(samples)) if draw(st.booleans()) else samples:
        text = ",".join(draw(st.permutations(own)) if draw(st.booleans()) else own)
        lines.append((f"{sample}{{{text}}} " if text else f"{sample} ") + draw(NUMBERS))
    return "".join(f"{line}\n" for line in lines)


PAGES = st.lists(st.sampled_from(sorted(KINDS)), unique=True).flatmap(
    lambda names: st.tuples(*map(family, names)).map("".join)
)
REAL = (FIXTURES / "worker" / "sglang-0.5.23-decode-fresh.metrics.txt").read_bytes()
SMALL = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="decode",dp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="decode",dp_rank="1"} 4.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 1.5e+06
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 1.0
sglang:time_to_first_token_seconds_bucket{le="1.0",model_name="m"} 3.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 4.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.5
sglang:time_to_first_token_seconds_count{model_name="m"} 4.0
# TYPE sglang:fwd_occupancy gauge
sglang:fwd_occupancy{engine_type="decode"} NaN
unwanted{a="b"} 1
"""
ROUTER = (FIXTURES / "router" / "sglang-router-0.3.2-pd-idle.metrics.txt").read_bytes()
SLOW = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=100)


@given(PAGES)
@SLOW
def test_made_up_pages_read_as_prometheus_client_reads_them(text: str) -> None:
    expected, _, repeated = oracle(text)
    reader = PageReader(frozenset(KINDS))
    cold = reader.read(text.encode())
    assert (cold.bad_lines, cold.duplicates) == (0, repeated)
    assert same(content(cold), expected)
    assert equal_pages(reader.read(text.encode()), cold)


@st.composite
def mutated(draw: st.DrawFn, body: bytes) -> bytes:
    lines = body.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        other = draw(st.integers(0, len(lines) - 1))
        action = draw(
            st.sampled_from(["insert", "remove", "swap", "repeat", "replace", "value", "cut", "type"])
        )
        if action == "insert":
            lines.insert(at, draw(st.one_of(st.binary(max_size=12), st.just(b"sglang:num_running_reqs 3"))))
        elif action == "remove" and len(lines) > 1:
            del lines[at]
        elif action == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif action == "repeat":
            lines.insert(other, lines[at])
        elif action == "replace":
            lines[at] = lines[other]
        elif action == "value":
            text = draw(
                st.sampled_from([b"5", b"-1.5", b"NaN", b"1_0", b"", b"x", b"3 17", b" 4 ", b"6\r", b"+Inf"])
            )
            lines[at] = lines[at].rpartition(b" ")[0] + b" " + text
        elif action == "cut":
            lines[at] = lines[at][: draw(st.integers(0, 60))]
        elif lines[at].startswith(b"# TYPE"):
            kind = draw(st.sampled_from([b"gauge", b"counter", b"histogram", b"untyped"]))
            lines[at] = lines[at].rpartition(b" ")[0] + b" " + kind
    return b"\n".join(lines)


@given(st.data())
@SLOW
def test_a_changed_page_is_read_as_by_a_reader_that_never_saw_another(data: st.DataObject) -> None:
    reader = fresh_reader()
    reader.read(REAL)
    body = REAL
    for _ in range(3):
        body = data.draw(mutated(body))
        steady = reader.read(body)
        cold = fresh_reader().read(body)
        assert equal_pages(steady, cold)
        assert equal_pages(reader.read(body), cold)


def without_total(values: dict[Key, float]) -> dict[Key, float]:
    """The oracle adds ``_total`` to whatever is declared a counter."""
    return {(name.removesuffix("_total"), labels, le): value for (name, labels, le), value in values.items()}


@given(mutated(SMALL))
@SLOW
def test_a_changed_page_reads_as_prometheus_client_reads_it(body: bytes) -> None:
    reader = fresh_reader()
    reader.read(SMALL)
    page = reader.read(body)
    try:
        known, _, _ = oracle(body.decode())
    except (ValueError, KeyError, IndexError):  # the oracle gives up on a bad line
        return
    read, expected = without_total(content(page)), without_total(known)
    assert not read.keys() - expected.keys()
    if not page.duplicates:
        assert same(read, {key: expected[key] for key in read})


@given(st.one_of(st.binary(max_size=400), mutated(REAL), mutated(ROUTER)), st.booleans())
@SLOW
def test_nothing_raises(body: bytes, truncated: bool) -> None:
    workers, routers = WorkerPageReader(), RouterPageReader()
    for _ in range(2):
        numbers = workers.read(body, 0.0, truncated=truncated)
        numbers.gauge("running")
        numbers.histogram("ttft")
        workers.read_aggregate(body, 0.0)
        routers.read(body, 0.0).each_worker()


def test_same_is_strict() -> None:
    assert same({("a", (), None): math.nan}, {("a", (), None): math.nan})
    assert not same({("a", (), None): 1.0}, {("a", (), None): 2.0})
