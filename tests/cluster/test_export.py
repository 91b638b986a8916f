"""The snapshot as JSON, CSV and printed table: true to its schema whatever it holds, and never invented."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rich.cells import cell_len

from pdtop.cluster.export import COLUMNS, SCHEMA, dumps, schema, to_csv, to_dict
from pdtop.cluster.model import (
    Backlog,
    Breaker,
    Drift,
    Finding,
    Goodput,
    Health,
    Identity,
    Latency,
    PageFacts,
    Pool,
    Rank,
    Role,
    Router,
    RouterOpinion,
    Severity,
    Snapshot,
    State,
    Worker,
)
from pdtop.cluster.table import render
from pdtop.metrics.distribution import Distribution
from pdtop.metrics.router_page import Summary

INF = math.inf
NAN = math.nan
VALIDATOR = Draft202012Validator(schema())


def latency(*counts: float, source: str = "decode", total: float = 10.0) -> Latency:
    """Buckets 0.1, 1, 60, +Inf with these cumulative counts."""
    return Latency(source, "sglang:x_seconds", Distribution((0.1, 1.0, 60.0, INF), counts, total))


def prefill(key: str = "10.0.1.11:30001", **changes: Any) -> Worker:
    base = Worker(
        key=key,
        name=key,
        role=Role.PREFILL,
        state=State.OK,
        usable=True,
        age_s=0.5,
        source="/metrics",
        running=3.0,
        backlog=Backlog(14.0, parts={"queue": 9.0, "bootstrap": 5.0}),
        inflight=2.0,
        kv_use=0.4,
        kv_use_worst=0.61,
        kv_worst_rank="1",
        hit_rate=0.72,
        tokens_per_s=24_100.0,
        prompt_tokens_per_s=24_100.0,
        queue_time=latency(0, 100, 100, 100),
        share=0.62,
        ranks=(Rank("0", 1.0, Backlog(4.0), 0.19), Rank("1", 2.0, Backlog(10.0), 0.61, age_s=0.5)),
        opinions=(
            RouterOpinion(
                "http://10.0.0.1:30000", health=Health.HEALTHY, breaker=Breaker.CLOSED, inflight=5.0
            ),
            RouterOpinion("http://10.0.0.2:30000", listed=False),
        ),
        identity=Identity(version="0.5.23", model="m", dp_size=2, flags={"schedule_policy": "fcfs"}),
        page=PageFacts(800, 1, 2, 88_000),
    )
    return replace(base, **changes)


def decode(key: str = "10.0.2.21:30001", **changes: Any) -> Worker:
    base = Worker(
        key=key,
        name=key,
        role=Role.DECODE,
        state=State.OK,
        usable=True,
        running=17.0,
        backlog=Backlog(3.0, lower_bound=True, parts={"queue": 1.0, "prealloc": 2.0, "transfer": None}),
        kv_use=0.44,
        tokens_per_s=3100.0,
        ttft=latency(0, 0, 0, 5),
        tpot=latency(50, 50, 50, 50),
    )
    return replace(base, **changes)


def snapshot(*workers: Worker, **changes: Any) -> Snapshot:
    base = Snapshot(
        number=7,
        cluster="prod-a",
        at=1_700_000_000.25,
        window_s=10.0,
        interval_s=1.0,
        routers=(Router("r0", "http://10.0.0.1:30000", "smg", version="1.13.0", state=State.OK, ready=True),),
        prefill=Pool(
            Role.PREFILL,
            1,
            1,
            running=3.0,
            backlog=Backlog(14.0, parts={"queue": 9.0, "bootstrap": 5.0}),
            policy="cache_aware",
        ),
        decode=Pool(
            Role.DECODE,
            2,
            1,
            draining=1,
            running=17.0,
            running_unknown=1,
            backlog=Backlog(3.0, lower_bound=True, parts={"queue": 1.0, "prealloc": 2.0, "transfer": None}),
        ),
        workers=workers,
        ttft=latency(0, 100, 100, 100, source="router"),
    )
    return replace(base, **changes)


def findings() -> tuple[Finding, ...]:
    return (
        Finding(Severity.INFO, "draining", "is draining", worker="10.0.2.21:30001", since_s=130.0),
        Finding(Severity.CRITICAL, "router_down", "does not answer", router="r0", fix="start it"),
        Finding(Severity.WARNING, "bottleneck", "decode is the limit", pool=Role.DECODE, evidence="KV 97 %"),
    )


# JSON ----------------------------------------------------------------------------------------------------


def test_worker_fields() -> None:
    exported = to_dict(snapshot(prefill()))
    worker = exported["workers"][0]
    assert exported["schema"] == SCHEMA == 1
    assert exported["at"] == 1_700_000_000.25
    assert worker["worker"] == "10.0.1.11:30001"
    assert worker["backlog"] == {"total": 14, "lower_bound": False, "parts": {"queue": 9, "bootstrap": 5}}
    assert worker["kv_use_worst_rank"] == {"rank": "1", "value": 0.61}
    assert worker["queue_ms"] == {
        "p50": 550,
        "p99": 991,
        "mean": 100,
        "count": 100,
        "source": "decode",
        "metric": "sglang:x_seconds",
        "approximate": False,
    }
    assert worker["router"] == worker["routers"][0]
    assert (worker["router"]["health"], worker["router"]["breaker"], worker["router"]["inflight"]) == (
        "healthy",
        "closed",
        5,
    )
    assert worker["routers"][1]["listed"] is False
    assert [rank["rank"] for rank in worker["ranks"]] == ["0", "1"]
    assert (worker["version"], worker["model"]) == ("0.5.23", "m")
    assert worker["page"] == {"lines": 800, "bad_lines": 1, "duplicates": 2, "bytes": 88_000}


def test_unknown_is_null_and_zero_is_zero() -> None:
    bare = to_dict(snapshot(Worker("w", "w", Role.DECODE, None, running=0.0)))["workers"][0]
    assert bare["running"] == 0
    for name in ("state", "usable", "inflight", "kv_use", "kv_use_worst_rank", "ttft_ms", "router", "page"):
        assert bare[name] is None, name
    assert bare["backlog"] == {"total": None, "lower_bound": False, "parts": {}}


def test_quantiles_that_are_only_bounded() -> None:
    worker = to_dict(snapshot(decode()))["workers"][0]
    assert worker["ttft_ms"]["p99"] == {"at_least": 60_000}
    assert worker["tpot_ms"]["p50"] == {"below": 100}


def test_nothing_observed_has_a_count_but_no_quantile() -> None:
    worker = to_dict(snapshot(decode(ttft=latency(0, 0, 0, 0, total=0.0))))["workers"][0]
    assert worker["ttft_ms"]["count"] == 0
    assert worker["ttft_ms"]["p50"] is worker["ttft_ms"]["mean"] is None


def test_quantiles_made_by_the_exporter_are_marked() -> None:
    summary = Latency("router", "smg_x", None, summary=Summary(((0.5, 0.25), (0.99, NAN)), 4.0, 2.0))
    exported = to_dict(snapshot(ttft=summary))["ttft_ms"]
    assert (exported["p50"], exported["p99"], exported["mean"], exported["approximate"]) == (
        250,
        None,
        500,
        True,
    )


def test_first_router_and_all_routers() -> None:
    two = to_dict(snapshot(routers=(Router("a", "u", "smg"), Router("b", "v", "pdtop"))))
    assert two["router"] == two["routers"][0]
    assert [router["name"] for router in two["routers"]] == ["a", "b"]
    assert to_dict(snapshot(routers=()))["router"] is None


def test_findings_come_worst_first() -> None:
    exported = to_dict(snapshot(findings=findings()))["findings"]
    assert [finding["severity"] for finding in exported] == ["critical", "warning", "info"]
    assert exported[1]["pool"] == "decode"


def test_goodput_in_milliseconds() -> None:
    exported = to_dict(snapshot(goodput=Goodput(0.8, None, 0.97, None)))["goodput"]
    assert exported == {
        "ttft_target_ms": 800,
        "tpot_target_ms": None,
        "ttft_share": 0.97,
        "tpot_share": None,
        "worst": 0.97,
    }


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_no_finite_number_is_null(value: float) -> None:
    worker = prefill(
        running=value,
        kv_use_worst=value,
        backlog=Backlog(value, parts={"queue": value}),
        ttft=latency(value, value, value, value, total=value),
    )
    exported = json.loads(dumps(snapshot(worker, window_s=value)))
    assert exported["window_s"] is None
    assert exported["workers"][0]["running"] is None
    assert exported["workers"][0]["backlog"]["parts"] == {"queue": None}
    assert exported["workers"][0]["kv_use_worst_rank"] is None
    VALIDATOR.validate(exported)


def test_outside_text_stays_in_one_harmless_line() -> None:
    hostile = "\x1b[31mred\n\u202e[bold]x[/]\ud800"
    line = dumps(snapshot(prefill(reason=hostile), cluster=hostile, notices=(hostile,)))
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line)[
        "cluster"
    ] == "\N{REPLACEMENT CHARACTER}[31mred \N{REPLACEMENT CHARACTER}[bold]x[/]" + (
        "\N{REPLACEMENT CHARACTER}"
    )


def test_drift_and_what_each_of_the_three_says() -> None:
    said = RouterOpinion("r0", role=Role.DECODE, bootstrap_port=8998, model="m")
    one = prefill(opinions=(said,), identity=Identity(role=Role.PREFILL))
    drift = (
        Drift(one.key, "role", "role: router says decode, engine says prefill", "r0", "restart it"),
        Drift("10.0.2.9:30001", "not_in_router", "in config, not in router"),
    )
    exported = to_dict(snapshot(one, drift=drift))
    VALIDATOR.validate(exported)
    assert exported["drift"][0] == {
        "worker": one.key,
        "kind": "role",
        "text": "role: router says decode, engine says prefill",
        "router": "r0",
        "fix": "restart it",
    }
    assert exported["drift"][1]["router"] is None
    opinion = exported["workers"][0]["router"]
    assert (opinion["role"], opinion["bootstrap_port"], opinion["model"]) == ("decode", 8998, "m")
    assert exported["workers"][0]["identity"]["role"] == "prefill"
    lines = render(snapshot(drift=drift), 100, colour=False).plain.splitlines()
    assert "≠ 2 differences between config.toml, routers and workers (1 role, 1 not in router)" in lines


# The schema ----------------------------------------------------------------------------------------------


def objects(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object schema with named properties."""
    if isinstance(node, dict):
        if "properties" in node:
            yield path, node
        for name, inner in node.items():
            yield from objects(inner, f"{path}/{name}")
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from objects(inner, f"{path}/{index}")


def test_schema_is_itself_valid() -> None:
    Draft202012Validator.check_schema(schema())


def test_every_property_is_documented_required_and_nothing_else_is_allowed() -> None:
    found = dict(objects(schema()))
    assert len(found) > 10
    for path, node in found.items():
        assert node["additionalProperties"] is False, path
        assert node["required"] == list(node["properties"]), path
        for name, inner in node["properties"].items():
            assert inner.get("description"), f"{path}: {name}"


def test_a_unit_in_a_name_is_in_its_description() -> None:
    units = {"_ms": "millisecond", "_per_s": "a second", "_s": "second"}
    for path, node in objects(schema()):
        for name, inner in node["properties"].items():
            unit = next((words for end, words in units.items() if name.endswith(end)), None)
            if unit is not None:
                assert unit in inner["description"].lower(), f"{path}: {name}"


def test_exported_fields_stand_in_the_order_of_the_schema() -> None:
    exported = to_dict(snapshot(prefill()))
    definitions = schema()["$defs"]
    assert list(exported) == schema()["required"]
    assert list(exported["workers"][0]) == definitions["worker"]["required"]
    assert list(exported["pools"]["prefill"]) == definitions["pool"]["required"]
    assert list(exported["router"]) == definitions["router"]["required"]


def test_states_and_roles_of_the_schema_are_the_models() -> None:
    definitions = schema()["$defs"]
    assert definitions["state"]["enum"] == list(State)
    assert definitions["role"]["enum"] == list(Role)
    assert definitions["opinion"]["properties"]["health"]["enum"] == [*Health, None]
    assert definitions["opinion"]["properties"]["breaker"]["enum"] == [*Breaker, None]
    assert definitions["finding"]["properties"]["severity"]["enum"] == list(Severity)


DRIFTS = schema()["$defs"]["drift"]["properties"]["kind"]["enum"]
BOUNDS = (0.1, 1.0, 60.0, INF)
TEXTS = st.text(st.characters(codec=None), max_size=12)
COUNTS = st.integers(0, 10**12)
#: Any double at all, as an unknown reader or exporter might hand it on.
NUMBERS = st.none() | st.floats()
LATENCIES = st.none() | st.builds(
    Latency,
    TEXTS,
    TEXTS,
    st.none() | st.builds(Distribution, st.just(BOUNDS), st.tuples(*[st.floats()] * 4), st.floats()),
    summary=st.none() | st.builds(Summary, st.tuples(st.tuples(st.just(0.5), st.floats())), NUMBERS, NUMBERS),
)
BACKLOGS = st.builds(Backlog, NUMBERS, st.booleans(), st.dictionaries(TEXTS, NUMBERS, max_size=3))
STATES = st.none() | st.sampled_from(State)
OPINIONS = st.builds(
    RouterOpinion, TEXTS, inflight=NUMBERS, load=NUMBERS, share=NUMBERS, breaker_since_s=NUMBERS
)
WORKERS = st.builds(
    Worker,
    TEXTS,
    TEXTS,
    st.sampled_from(Role),
    STATES,
    TEXTS,
    usable=st.none() | st.booleans(),
    draining=st.booleans(),
    stale=st.booleans(),
    age_s=NUMBERS,
    running=NUMBERS,
    backlog=BACKLOGS,
    kv_use_worst=NUMBERS,
    kv_worst_rank=st.none() | TEXTS,
    tokens_per_s=NUMBERS,
    ttft=LATENCIES,
    tpot=LATENCIES,
    queue_time=LATENCIES,
    share=NUMBERS,
    weight=st.floats(),
    ranks=st.tuples(st.builds(Rank, TEXTS, NUMBERS, BACKLOGS, NUMBERS)),
    opinions=st.lists(OPINIONS, max_size=2).map(tuple),
    identity=st.builds(Identity, version=st.none() | TEXTS, flags=st.dictionaries(TEXTS, TEXTS, max_size=2)),
    page=st.none() | st.builds(PageFacts, COUNTS, COUNTS, COUNTS, COUNTS),
)


def pools(role: Role) -> st.SearchStrategy[Pool]:
    return st.builds(
        Pool, st.just(role), COUNTS, COUNTS, running=NUMBERS, backlog=BACKLOGS, ttft=LATENCIES, policy=TEXTS
    )


SNAPSHOTS = st.builds(
    Snapshot,
    COUNTS,
    TEXTS,
    st.floats(),
    st.floats(),
    st.floats(),
    routers=st.lists(
        st.builds(
            Router, TEXTS, TEXTS, TEXTS, st.none() | TEXTS, STATES, requests_per_s=NUMBERS, duration=LATENCIES
        ),
        max_size=2,
    ).map(tuple),
    prefill=pools(Role.PREFILL),
    decode=pools(Role.DECODE),
    workers=st.lists(WORKERS, max_size=3).map(tuple),
    ttft=LATENCIES,
    goodput=st.none() | st.builds(Goodput, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    findings=st.lists(
        st.builds(
            Finding,
            st.sampled_from(Severity),
            TEXTS,
            TEXTS,
            st.none() | TEXTS,
            st.none() | st.sampled_from(Role),
            st.none() | TEXTS,
            TEXTS,
            TEXTS,
            NUMBERS,
        ),
        max_size=2,
    ).map(tuple),
    drift=st.lists(
        st.builds(Drift, TEXTS, st.sampled_from(DRIFTS), TEXTS, st.none() | TEXTS, TEXTS), max_size=2
    ).map(tuple),
    config_error=TEXTS,
    notices=st.tuples(TEXTS),
)
#: Shrinking snapshots of this size takes minutes; what fails is small enough to read as it is.
MANY = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@MANY
@given(SNAPSHOTS)
def test_any_snapshot_validates(made: Snapshot) -> None:
    VALIDATOR.validate(json.loads(dumps(made)))


@MANY
@given(SNAPSHOTS)
def test_any_snapshot_is_a_csv_of_one_row_a_worker(made: Snapshot) -> None:
    rows = list(csv.reader(StringIO(to_csv(made))))
    assert len(rows) == 1 + len(made.workers)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert not any(cell in ("nan", "inf", "-inf", "None") for row in rows[1:] for cell in row[8:12])


@MANY
@given(SNAPSHOTS, st.integers(0, 130))
def test_any_snapshot_fits_any_width(made: Snapshot, width: int) -> None:
    printed = render(made, width).plain
    assert [line for line in printed.split("\n") if cell_len(line) > max(width, 20)] == []
    assert "\x1b" not in printed
    assert "\r" not in printed


# CSV -----------------------------------------------------------------------------------------------------


def rows_of(taken: Snapshot) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(to_csv(taken))))


def test_csv_header_is_there_without_workers() -> None:
    assert to_csv(snapshot()) == ",".join(COLUMNS) + "\n"


def test_csv_row() -> None:
    p, d = rows_of(snapshot(prefill(), decode(draining=True)))
    assert (p["at"], p["cluster"], p["worker"], p["role"]) == (
        "1700000000.25",
        "prod-a",
        "10.0.1.11:30001",
        "prefill",
    )
    assert (p["backlog"], p["backlog_queue"], p["backlog_bootstrap"], p["backlog_transfer"]) == (
        "14",
        "9",
        "5",
        "",
    )
    assert (p["kv_use_worst"], p["kv_use_worst_rank"], p["router_health"]) == ("0.61", "1", "healthy")
    assert (d["ttft_p99_ms"], d["tpot_p50_ms"]) == (">=60000", "<100")
    assert (d["draining"], d["backlog_lower_bound"], d["backlog_transfer"], d["hit_rate"]) == (
        "true",
        "true",
        "",
        "",
    )


@pytest.mark.parametrize("text", ["=1+1", "@x", "+1", "-1"])
def test_csv_text_is_no_formula(text: str) -> None:
    assert rows_of(snapshot(prefill(reason=text)))[0]["reason"] == f"'{text}"


# Table ---------------------------------------------------------------------------------------------------


def printed(taken: Snapshot, width: int = 80) -> str:
    return render(taken, width, colour=False).plain


def test_table_at_80_cells() -> None:
    silent = Worker(
        "10.0.2.22:30001",
        "10.0.2.22:30001",
        Role.DECODE,
        State.TIMEOUT,
        reason="no answer in 2 s",
        usable=False,
    )
    taken = snapshot(prefill(), decode(), silent, findings=findings())
    assert (
        printed(taken)
        == """\
prod-a  smg 1.13.0 ● ready  1P 1/2D usable  window 10 s  oldest numbers 0 s
TTFT p50 550 ms  p99 991 ms (router)  TPOT p50 –  p99 –

✖ r0: does not answer
  → start it
▲ decode pool: decode is the limit (KV 97 %)
◌ D 10.0.2.21:30001: is draining (for 2m10s)

PREFILL  1/1 usable  running 3  backlog 14 (queue 9 · bootstrap 5)  inflight –
  hit –  KV –  – tok/s  cache_aware
WORKER           STATE  RUN  BACKLOG  INFL    KV   HIT  TOK/S  QUEUE p99  SHARE
10.0.1.11:30001  ok       3       14     2  61 %  72 %  24.1k     991 ms   62 %

DECODE  1/2 usable  running ≥ 17
  backlog ≥ 3 (queue 1 · prealloc 2 · transfer –)  KV –  – tok/s  1 draining
WORKER           STATE      RUN  BACKLOG    KV  TOK/S  TTFT p99  TPOT p99  SHARE
10.0.2.21:30001  ok          17      ≥ 3  44 %   3.1k    ≥ 60 s  < 100 ms      –
10.0.2.22:30001  ✖ timeout    –        –     –      –         –         –      –
  10.0.2.22:30001: no answer in 2 s"""
    )


def test_more_width_shows_more_columns() -> None:
    header = next(line for line in printed(snapshot(decode()), 140).split("\n") if line.startswith("WORKER"))
    assert header.split()[-4:] == ["p99", "SHARE", "ROUTER", "AGE"]


def test_a_long_name_keeps_both_ends() -> None:
    name = "prefill-very-long-host-name-of-some-cloud-provider.example.internal:30001"
    lines = printed(snapshot(prefill(name=name))).split("\n")
    row = next(line for line in lines if line.startswith("prefill-"))
    assert "…" in row
    assert ":30001" in row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": None}, "not asked"),
        ({"state": State.FROZEN, "draining": True}, "✖ frozen"),
        ({"draining": True, "usable": False}, "◌ drain"),
        ({"usable": False}, "▲ unusable"),
        ({"stale": True}, "▲ stale"),
        ({"state": State.METRICS_DISABLED}, "▲ no page"),
        ({"state": State.OK_WITH_WARNINGS}, "ok"),
    ],
)
def test_state_in_words(changes: dict[str, Any], words: str) -> None:
    row = next(
        line for line in printed(snapshot(decode(**changes))).split("\n") if line.startswith("10.0.2.21")
    )
    assert row.removeprefix("10.0.2.21:30001").strip().startswith(words)


def test_workers_of_no_pool_are_shown() -> None:
    lines = printed(snapshot(decode("10.0.3.1:30001", role=Role.UNIFIED))).split("\n")
    assert lines[lines.index("OTHER") + 2].startswith("10.0.3.1:30001")


def test_nothing_read_is_not_nothing_wrong() -> None:
    assert "✓ no findings" in printed(snapshot(prefill()))
    refused = Router("r0", "u", "unknown", state=State.REFUSED)
    lines = printed(snapshot(prefill(state=State.REFUSED), routers=(refused,))).split("\n")
    assert "nothing could be read" in lines
    assert "unknown ✖ refused" in lines[0]


def test_broken_config_and_notices_are_told() -> None:
    lines = printed(
        snapshot(config_error="line 3: no such policy", notices=("one router is ignored",))
    ).split("\n")
    assert "✖ config.toml: line 3: no such policy" in lines
    assert "one router is ignored" in lines


def test_colour_is_an_option_and_markup_is_text() -> None:
    taken = snapshot(prefill(name="[red]x[/]\x1b[31m"), findings=findings())
    assert render(taken, 80, colour=False).spans == []
    assert any("red" in str(span.style) for span in render(taken, 80).spans)
    assert "[red]x[/]\N{REPLACEMENT CHARACTER}[31m" in printed(taken)


def test_exporting_needs_neither_screen_nor_rich() -> None:
    code = (
        "import sys, pdtop.cluster.export;"
        "print([name for name in ('rich', 'textual', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
