"""One look at the product: a case's worker, pool, router, cluster and finding tables against a snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import jsonschema

from pdtop.cluster import export
from pdtop.cluster.model import Finding, Latency, Pool, Rank, Role, Router, Snapshot, State, Worker
from pdtop.cluster.period import Period
from pdtop.cluster.router_watch import key_of
from pdtop.cluster.words import UNKNOWN, clean
from pdtop.insight.reach import counted_as_down
from pdtop.insight.slo import within
from pdtop.metrics import catalogue
from pdtop.metrics.worker_page import WorkerNumbers
from tests.cases.values import Report, Seen

Table = Mapping[str, object]

POOLS = {"P": Role.PREFILL, "D": Role.DECODE}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p98": 0.98, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Extra:
    """What a look at one worker needs besides the snapshot; the runner knows it from the whole run."""

    period: Period[WorkerNumbers] | None = None
    rates_ever: Sequence[float | None] = ()
    drained: bool | None = None
    flaps: int | None = None
    updated_every_s: float | None = None
    state_shown_after_s: float | None = None


@dataclass(slots=True)
class Look:
    """``name``s of the case are looked up by canonical key; ``extras`` by key, too."""

    report: Report
    snapshot: Snapshot
    extras: Mapping[str, Extra] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # key -> name in the case
    verdicts: Mapping[str, Callable[[Table, str], None]] = field(default_factory=dict)

    def check(self, where: str, check: Table) -> None:
        """Every table of one check that a snapshot can answer; the caller has done with all other keys."""
        for name, table in _tables(check.get("workers")):
            self.worker(f"{where} worker {name}", name, table)
        for name, table in _tables(check.get("pools")):
            self.pool(f"{where} pool {name}", self._pool(name), table)
        for name, table in _tables(check.get("routers")):
            self.router(f"{where} router {name}", name, table)
        if "cluster" in check:
            self.cluster(f"{where} cluster", _table(check["cluster"]))
        seen = [self.seen(finding) for finding in self.snapshot.findings]
        self.report.findings(f"{where} findings", map(_table, _list(check.get("findings"))), seen)
        self.report.no_findings(f"{where} no_findings", map(_table, _list(check.get("no_findings"))), seen)
        if "hint_mentions" in check:
            self.report.mentions(f"{where} hint", _list(check["hint_mentions"]), self.all_hints())
        if check.get("export_without_nan"):
            self.export(where)

    def seen(self, finding: Finding) -> Seen:
        worker = None if finding.worker is None else self.names.get(finding.worker, finding.worker)
        words = " ".join((finding.text, finding.evidence, finding.fix))
        return Seen(finding.kind, words, worker, finding.router)

    def export(self, where: str) -> None:
        """The JSON export is JSON, holds no NaN token and is as its schema says."""

        def refuse(token: str) -> None:
            self.report.fail(f"{where} export", f"holds {token}")

        exported = json.loads(export.dumps(self.snapshot), parse_constant=refuse)
        jsonschema.validate(exported, export.schema())

    def all_hints(self) -> str:
        hints = [words for worker in self.snapshot.workers for words in (worker.reason, worker.fix)]
        hints += [words for router in self.snapshot.routers for words in (router.reason, router.fix)]
        hints += [" ".join((f.text, f.evidence, f.fix)) for f in self.snapshot.findings]
        return "\n".join((*hints, *self.snapshot.notices, self.snapshot.config_error))

    # Workers

    def worker(self, where: str, name: str, expected: Table) -> None:
        key = key_of(name, None)
        worker = self.snapshot.worker(key)
        if worker is None:
            self.report.fail(where, f"not among {[w.key for w in self.snapshot.workers]}")
            return
        extra = self.extras.get(key, Extra())
        for field_name, wanted in expected.items():
            self._worker_field(f"{where} {field_name}", worker, extra, field_name, wanted)

    def _worker_field(self, where: str, worker: Worker, extra: Extra, name: str, wanted: object) -> None:
        report = self.report
        if name in _WORKER_VALUES:
            says = worker.backlog.lower_bound if name == "backlog" else worker.incomplete
            report.value(where, wanted, _WORKER_VALUES[name](worker), says_at_least=says)
        elif name in _WORKER_FACTS:
            report.equal(where, wanted, _WORKER_FACTS[name](worker))
        elif name in _PAGE_VALUES:
            page = extra.period.newest if extra.period is not None else None
            report.value(where, wanted, _PAGE_VALUES[name](page) if page is not None else None)
        elif name in ("ttft", "tpot"):
            latency = worker.ttft if name == "ttft" else worker.tpot
            self.latency(where, latency, _table(wanted), worker.trends.get(name))
        elif name == "backlog_parts":
            for part, value in _table(wanted).items():
                report.value(f"{where} {part}", value, worker.backlog.parts.get(part))
        elif name == "hot_rank":
            rank = next((one for one in worker.ranks if one.dp_rank == worker.kv_worst_rank), None)
            for part, value in _table(wanted).items():
                report.value(f"{where} {part}", value, _RANK_VALUES[part](rank) if rank else None)
        elif name == "increase":
            window = extra.period.window if extra.period is not None else None
            for counter, value in _table(wanted).items():
                grown = window.increase_named(counter) if window is not None else None
                report.value(f"{where} {counter}", value, grown)
        elif name == "within":
            for one in map(_table, _list(wanted)):
                self._within(where, worker, extra, one)
        elif name == "hint_mentions":
            own = [f.text + " " + f.fix for f in self.snapshot.findings if f.worker == worker.key]
            words = " ".join((worker.reason, worker.fix, worker.unusable_because, *own))
            report.mentions(where, _list(wanted), words)
        elif name == "negative_rate_ever":
            ever = any(rate is not None and rate < 0 for rate in extra.rates_ever)
            report.equal(where, wanted, ever)
        elif name == "series_not_listed":
            self._not_listed(where, extra, _list(wanted))
        elif name == "shown":
            self._shown(where, worker, extra, _table(wanted))
        else:
            self._run_field(where, extra, name, wanted)

    def _run_field(self, where: str, extra: Extra, name: str, wanted: object) -> None:
        """What only the story of the whole run can tell."""
        if name == "drained":
            self.report.equal(where, wanted, extra.drained)
        elif name == "flaps":
            self.report.value(where, wanted, extra.flaps)
        elif name in ("updated_every_s_at_most", "shown_within_s"):
            took = extra.updated_every_s if name.startswith("updated") else extra.state_shown_after_s
            within_limit = took is not None and isinstance(wanted, int | float) and took <= wanted
            self.report.true(where, within_limit, f"took {took} s, at most {wanted} s are allowed")
        else:
            self.report.fail(where, "this runner does not know the field")

    def _within(self, where: str, worker: Worker, extra: Extra, wanted: Table) -> None:
        by_ttft = "ttft_s" in wanted
        target = wanted["ttft_s"] if by_ttft else wanted["tpot_s"]
        assert isinstance(target, int | float)
        seconds = extra.period.seconds if extra.period is not None else None
        found = within(worker.ttft if by_ttft else worker.tpot, target, seconds)
        at = f"{where} {target} s"
        if found is None:
            self.report.fail(at, "no share is given")
            return
        share = found.share
        if "share" in wanted:
            self.report.value(f"{at} share", wanted["share"], share.low if share.exact else None)
        if "exact" in wanted:
            self.report.equal(f"{at} exact", wanted["exact"], share.exact)
        if "share_range" in wanted:
            self.report.equal(f"{at} range", wanted["share_range"], [share.low, share.high])
        if "interpolated" in wanted and share.interpolated is not None:
            self.report.value(f"{at} interpolated", wanted["interpolated"], share.interpolated)
        if "good_req_per_s" in wanted:
            self.report.value(f"{at} good_req_per_s", wanted["good_req_per_s"], found.good_per_s)

    def _not_listed(self, where: str, extra: Extra, endings: Sequence[object]) -> None:
        page = extra.period.newest if extra.period is not None else None
        listed = [one.family for one in page.layout.series] if page is not None else []
        for ending in map(str, endings):
            found = sorted({name for name in listed if name.endswith(ending)})
            self.report.true(where, not found, f"{found} are listed")

    def _shown(self, where: str, worker: Worker, extra: Extra, wanted: Table) -> None:
        """All digits of the number, none made up: as the export writes it."""
        page = extra.period.newest if extra.period is not None else None
        for name, text in wanted.items():
            get = _WORKER_VALUES.get(name)
            value = (
                get(worker) if get else _PAGE_VALUES[name](page) if name in _PAGE_VALUES and page else None
            )
            self.report.equal(f"{where} {name}", text, _digits(value))

    # Pools, routers, cluster

    def _pool(self, name: str) -> Pool:
        return self.snapshot.prefill if POOLS[name] is Role.PREFILL else self.snapshot.decode

    def pool(self, where: str, pool: Pool, expected: Table) -> None:
        for name, wanted in expected.items():
            if name == "ttft":
                self.latency(f"{where} ttft", pool.ttft, _table(wanted), pool.trends.get("ttft"))
            else:
                says = pool.backlog.lower_bound if name == "backlog" else pool.running_unknown > 0
                self.report.value(f"{where} {name}", wanted, _POOL_VALUES[name](pool), says_at_least=says)

    def router(self, where: str, name: str, expected: Table) -> None:
        router = next((one for one in self.snapshot.routers if one.name == name), None)
        if router is None:
            self.report.fail(where, f"not among {[one.name for one in self.snapshot.routers]}")
            return
        for field_name, wanted in expected.items():
            at = f"{where} {field_name}"
            if field_name in _ROUTER_VALUES:
                self.report.value(at, wanted, _ROUTER_VALUES[field_name](router))
            elif field_name == "rows":
                self.report.value(at, wanted, self._rows(router))
            elif field_name == "list_stale":
                self.report.equal(at, wanted, router.list_stale)
            elif field_name == "duration":
                self.latency(at, router.duration, _table(wanted), None)
            elif field_name in ("hint_mentions", "error_mentions"):
                own = [f.text + " " + f.fix for f in self.snapshot.findings if f.router == router.name]
                words = " ".join((router.reason, router.fix, router.ready_reason, *own))
                self.report.mentions(at, _list(wanted), words)
            elif field_name in self.verdicts:
                self.verdicts[field_name](_table(wanted), name)
            else:
                self.report.fail(at, "this runner does not know the field")

    def _rows(self, router: Router) -> int:
        spoken_of = [
            worker
            for worker in self.snapshot.workers
            if any(one.router == router.name and one.listed for one in worker.opinions)
        ]
        return len(spoken_of)

    def cluster(self, where: str, expected: Table) -> None:
        snapshot = self.snapshot
        if "ttft" in expected:
            self.latency(f"{where} ttft", snapshot.ttft, _table(expected["ttft"]), None)
        parts = _table(expected.get("ttft_parts", {}))
        if "prefill" in parts:
            self.latency(f"{where} prefill part", snapshot.ttft_prefill_part, _table(parts["prefill"]), None)
        if "decode" in parts:
            self.latency(f"{where} decode part", snapshot.ttft_decode_part, _table(parts["decode"]), None)

    def latency(
        self, where: str, latency: Latency | None, expected: Table, trend: Sequence[float | None] | None
    ) -> None:
        distribution = latency.distribution if latency is not None else None
        for name, wanted in expected.items():
            at = f"{where} {name}"
            if name in QUANTILES:
                found = latency.quantile(QUANTILES[name]) if latency is not None else None
                value, says = (found.value, found.at_least) if found is not None else (None, False)
                self.report.value(at, wanted, value, says_at_least=says, exact_bound=True)
            elif name in ("count", "mean", "source"):
                self.report.value(at, wanted, getattr(latency, name) if latency is not None else None)
            elif name == "share_above":
                for bound, share in _table(wanted).items():
                    above = distribution.share_above(float(bound)) if distribution is not None else None
                    self.report.value(f"{at} {bound}", share, above)
            elif name == "approximate":
                self.report.equal(at, wanted, latency is not None and latency.approximate)
            else:
                assert name == "sparkline"
                self.report.true(
                    at, bool(trend) and trend is not None and trend[-1] is None, f"ends in {trend}"
                )


def _digits(value: object) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN if value is None else str(value)
    return f"{value:.0f}" if float(value).is_integer() else repr(value)


def _metrics_word(router: Router) -> str | None:
    if router.metrics_state is None:
        return None
    return "not_found" if router.metrics_state is State.METRICS_DISABLED else "ok"


def _mean_failure_rate(worker: Worker) -> float | None:
    rates = [one.failure_rate for one in worker.opinions if one.failure_rate is not None]
    return rates[0] if len(rates) == 1 else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


_WORKER_VALUES: dict[str, Callable[[Worker], object]] = {
    "state": lambda w: w.state,
    "role": lambda w: w.role,
    "running": lambda w: w.running,
    "backlog": lambda w: w.backlog.total,
    "transferring": lambda w: w.inflight,
    "retracted": lambda w: w.retracted,
    "token_usage_max": lambda w: w.kv_use_worst,
    "token_usage_mean": lambda w: w.kv_use,
    "rank_count": lambda w: len(w.ranks),
    "ranks_expected": lambda w: w.ranks_expected,
    "fwd_occupancy": lambda w: w.fwd_occupancy,
    "spec_accept_rate": lambda w: w.spec_accept_rate,
    "tok_per_s": lambda w: w.generated_tokens_per_s,
    "prompt_tok_per_s": lambda w: w.prompt_tokens_per_s,
    "req_per_s": lambda w: w.requests_per_s,
    "resets": lambda w: w.resets,
    "model_name": lambda w: w.identity.model,
    "model_name_shown_lines": lambda w: len(clean(w.identity.model or "").splitlines()),
    "page_lines": lambda w: w.page.lines if w.page else None,
    "parse_errors": lambda w: w.page.bad_lines if w.page else None,
    "duplicates": lambda w: w.page.duplicates if w.page else None,
    "share": lambda w: w.share,
    "failure_rate": _mean_failure_rate,
    "router_inflight": lambda w: _sum(one.inflight for one in w.opinions),
    "router_load": lambda w: _sum(one.load for one in w.opinions),
    "tokens": lambda w: w.tokens_held,
    "source": lambda w: w.source,
    "status": lambda w: w.status,
    "stale_polls": lambda w: w.missed_polls,
}

_WORKER_FACTS: dict[str, Callable[[Worker], object]] = {
    "backlog_is_lower_bound": lambda w: w.backlog.lower_bound,
    "ranks": lambda w: [rank.dp_rank for rank in w.ranks],
    "ranks_used": lambda w: list(w.ranks_used),
    "partial": lambda w: w.incomplete or w.backlog.lower_bound or w.state is State.PARTIAL,
    "counted_as_down": counted_as_down,
    "marked_stale": lambda w: w.stale and w.age_s is not None,
}

_PAGE_VALUES: dict[str, Callable[[WorkerNumbers], object]] = {
    "prompt_tokens_total": lambda page: page.counter(catalogue.PROMPT_TOKENS),
}

_RANK_VALUES: dict[str, Callable[[Rank], object]] = {
    "dp_rank": lambda rank: rank.dp_rank,
    "running": lambda rank: rank.running,
    "backlog": lambda rank: rank.backlog.total,
    "token_usage": lambda rank: rank.kv_use,
}

_POOL_VALUES: dict[str, Callable[[Pool], object]] = {
    "running": lambda p: p.running,
    "backlog": lambda p: p.backlog.total,
    "fwd_occupancy_mean": lambda p: p.fwd_occupancy_mean,
    "spec_accept_rate_mean": lambda p: p.spec_accept_rate_mean,
    "gen_throughput_sum": lambda p: p.gen_throughput_sum,
}

_ROUTER_VALUES: dict[str, Callable[[Router], object]] = {
    "state": lambda r: r.state,
    "health": lambda r: None if r.alive is None else "ok" if r.alive else "failed",
    "control": lambda r: "enabled" if r.control else "disabled",
    "metrics": _metrics_word,
    "active_workers": lambda r: r.active_workers,
    "engine_series": lambda r: r.engine_series,
    "requests": lambda r: r.requests,
    "max_over_mean": lambda r: r.max_over_mean,
    "load_sum": lambda r: r.load_sum,
}


def _table(value: object) -> Table:
    assert isinstance(value, Mapping)
    return value


def _tables(value: object) -> list[tuple[str, Table]]:
    return [(name, _table(table)) for name, table in _table(value or {}).items()]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
