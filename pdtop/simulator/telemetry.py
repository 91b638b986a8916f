"""Turns what the engines do into what a worker shows: the metrics page, ``/v1/loads`` and the truth.

The page repeats SGLang 0.5.23's habits: families are absent until their first sample, gauges come from the
first tensor rank only but histograms and failure counters from every one, two gauges carry a ``pid``,
``utilization`` is -1 on prefill, ``fwd_occupancy`` is NaN, and time-to-first-token exists on decode only.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pdtop.simulator.catalogue import FAMILIES, GRAPH_PHASES, ROUTING_KEY_BANDS, SCHEDULER_STAGES
from pdtop.simulator.decode import DecodeEngine
from pdtop.simulator.engine import Finished, Gauges, Role
from pdtop.simulator.exposition import Registry
from pdtop.simulator.loads import Work, load_entry
from pdtop.simulator.prefill import PrefillEngine

Engine = PrefillEngine | DecodeEngine
Labels = Mapping[str, str]

VERSION = "0.5.23"

#: Samples that ``/truth`` keeps of each latency.
TRUTH_SAMPLES = 20_000

_ZERO_GAUGES = (
    *("num_grammar_queue_reqs", "num_decode_host_receive_queue_reqs", "num_decode_deferred_kv_release_reqs"),
    *("swa_token_usage", "mamba_usage", "swa_used_tokens", "swa_available_tokens", "swa_evictable_tokens"),
    *("mamba_used_tokens", "mamba_available_tokens", "mamba_evictable_tokens", "is_cuda_graph"),
    *("pending_prealloc_token_usage", "prealloc_swa_token_usage", "spec_accept_length", "spec_accept_rate"),
    *("spec_num_steps", "spec_num_draft_tokens", "spec_cap_length", "spec_block_accept_length"),
    "num_unique_running_routing_keys",
)


@dataclass(slots=True)
class Truth:
    """What really happened on one worker, kept apart from the metrics: the standard to compare with."""

    counts: Counter[str] = field(default_factory=Counter)
    ttft: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TRUTH_SAMPLES))
    tpot: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TRUTH_SAMPLES))

    def since(self, start: float) -> dict[str, object]:
        return {
            "counts": dict(self.counts),
            "ttft_s": [[at, v] for at, v in self.ttft if at >= start],
            "tpot_s": [[at, v] for at, v in self.tpot if at >= start],
        }


class RankTelemetry:
    """The observer of one DP rank's engine. ``tp`` tensor ranks repeat its histograms."""

    def __init__(
        self, registry: Registry, role: Role, model_name: str, dp_rank: int | None, tp: int, truth: Truth
    ) -> None:
        self.dp_rank = dp_rank
        self.work = Work()
        self._registry = registry
        self._role = role
        self._truth = truth
        self._worker: dict[str, str] = {"engine_type": role, "model_name": model_name}
        dp = {} if dp_rank is None else {"dp_rank": str(dp_rank)}
        self._ranks: list[dict[str, str]] = [
            {**dp, **self._worker, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": str(t)} for t in range(tp)
        ]
        self._main = self._ranks[0]

    # ---- engine.Observer

    def stage(self, name: str, seconds: float) -> None:
        self._each("per_stage_req_latency_seconds", seconds, stage=name)

    def queued(self, seconds: float) -> None:
        self._each("queue_time_seconds", seconds)

    def prefilled(self, computed: int, cached: int) -> None:
        self.work.computed_tokens += computed
        self._truth.counts["prefill_computed_tokens"] += computed
        self._truth.counts["prefill_cached_tokens"] += cached
        for labels in self._ranks:
            for mode, tokens in (("input", computed), ("device_hit", cached)):
                self._add("prefill_effective_tokens", tokens, {**labels, "mode": mode})
        self._add("cuda_graph_passes", 1, {**self._main, "mode": "prefill_none"})
        self._add("realtime_tokens", computed, {**self._main, "mode": "prefill_compute"})
        if cached:
            self._add("realtime_tokens", cached, {**self._main, "mode": "prefill_cache"})

    def evicted(self, tokens: int) -> None:
        labels = {"cache_type": "UnifiedRadixCache", "dp_rank": str(self.dp_rank or 0)}
        for rank in self._ranks:
            cache = {**labels, "pp_rank": "0", "tp_rank": rank["tp_rank"]}
            self._add("evicted_tokens", tokens, cache)
            self._registry.histogram("eviction_duration_seconds", cache).observe(0.0001 + tokens * 2e-8)

    def decoded(self, tokens: int) -> None:
        self.work.decoded_tokens += tokens
        self._truth.counts["decoded_tokens"] += tokens
        self._add("realtime_tokens", tokens, {**self._main, "mode": "decode"})
        self._add("cuda_graph_passes", 1, {**self._main, "mode": "decode_none"})

    def handshake(self, bootstrap_s: float, alloc_s: float) -> None:
        self._each("kv_transfer_bootstrap_ms", bootstrap_s * 1e3)
        self._each("kv_transfer_alloc_ms", alloc_s * 1e3)

    def transferred(self, seconds: float, size_bytes: float) -> None:
        self._truth.counts["transfers"] += 1
        self._each("kv_transfer_latency_ms", seconds * 1e3)
        self._each("kv_transfer_total_mb", size_bytes / 2**20 / len(self._ranks))
        speed = size_bytes / 2**30 / max(seconds, 1e-6)
        self._each("kv_transfer_speed_gb_s", speed)
        self.work.transfer_gb_s, self.work.transfer_ms = speed, seconds * 1e3

    def transfer_failed(self) -> None:
        self._truth.counts["transfers_failed"] += 1
        for labels in self._ranks:
            self._add("num_transfer_failed_reqs", 1, labels)

    def retracted(self, input_tokens: int, output_tokens: int) -> None:
        self._truth.counts["retracted"] += 1
        self._add("num_retracted_requests", 1, self._main)
        self._add("num_retracted_input_tokens", input_tokens, self._main)
        self._add("num_retracted_output_tokens", output_tokens, self._main)

    def first_token(self, seconds: float, streaming: bool, at: float) -> None:
        self._truth.ttft.append((at, seconds))
        self._registry.histogram("time_to_first_token_seconds", self._stream(streaming)).observe(seconds)

    def tokens_out(self, tokens: int, gap_s: float) -> None:
        self._registry.histogram("inter_token_latency_seconds", self._worker).observe(gap_s, tokens)

    def finished(self, done: Finished) -> None:
        registry, stream = self._registry, self._stream(done.streaming)
        self._truth.counts["finished"] += 1
        self._truth.counts["prompt_tokens"] += done.prompt_tokens
        self._truth.counts["output_tokens"] += done.output_tokens
        self._add("num_requests", 1, stream)
        self._add("prompt_tokens", done.prompt_tokens, stream)
        self._add("generation_tokens", done.output_tokens, stream)
        if done.cached_tokens:
            self._add("cached_tokens", done.cached_tokens, {"cache_source": "device", **self._worker})
        registry.histogram("e2e_request_latency_seconds", stream).observe(done.e2e_s)
        uncached = done.prompt_tokens - done.cached_tokens
        registry.histogram("prompt_tokens_histogram", self._worker).observe(done.prompt_tokens)
        registry.histogram("uncached_prompt_tokens_histogram", self._worker).observe(uncached)
        registry.histogram("generation_tokens_histogram", self._worker).observe(done.output_tokens)
        if done.token_time_s is not None:
            self._truth.tpot.append((done.at, done.token_time_s))
            tpot = registry.histogram("request_time_per_output_token_seconds", stream)
            tpot.observe(done.token_time_s)

    def aborted(self) -> None:
        self._truth.counts["aborted"] += 1
        self._add("num_aborted_requests", 1, self._worker)

    # ---- other events

    def warm_up(self) -> None:
        """The request that a worker sends itself before it says it is healthy; no KV is moved for it."""
        self.health_check()
        if self._role == "prefill":
            self.prefilled(4, 0)
            self.finished(Finished(0.0, False, 4, 0, 1, 0.03, None))
        else:
            self.decoded(8)
            self.first_token(0.06, False, 0.0)
            self.finished(Finished(0.0, False, 4, 0, 8, 0.06, None))
        for samples in (self._truth.ttft, self._truth.tpot):
            samples.clear()
        self._truth.counts.clear()
        self.work = Work()

    def health_check(self) -> None:
        """A health check is a real request to the scheduler, unknown to the counters of the HTTP process."""
        self.queued(0.0002)
        if self._role == "prefill":
            stages: tuple[str, ...] = ("prefill_bootstrap", "prefill_forward", "prefill_transfer_kv_cache")
        else:
            stages = (
                "decode_prepare",
                "decode_bootstrap",
                "decode_transferred",
                "decode_waiting",
                "fake_output",
            )
            self.handshake(0.0003, 0.0002)
        for stage in stages:
            self.stage(stage, 0.0002)

    def seed(self, now: Gauges) -> None:
        """The series that exist from the start."""
        for labels in self._ranks:
            for mode in ("input", "device_hit", "host_hit", "storage_hit"):
                self._add("prefill_effective_tokens", 0, {**labels, "mode": mode})
            for kind in ("scheduled", "imbalance"):
                self._add("dp_attention_tokens", 0, {**labels, "kind": kind})
                self._add("dp_attention_pairs", 0, {**labels, "kind": kind})
            for state in ("active", "idle"):
                self._add("dp_attention_steps", 0, {**labels, "rank_state": state})
            for name in ("dp_attention_token_imbalance_ratio", "dp_attention_sync_wait_seconds"):
                self._registry.histogram(name, labels)
            constants = {
                "max_total_num_tokens": now.capacity_tokens,
                "weight_memory_usage_gb": 35.31,
                "kv_cache_memory_usage_gb": round(now.capacity_tokens * 160 / 2**20, 2),
                "page_size": 1,
                "num_pages": now.capacity_tokens,
                "context_len": 32768,
                "startup_available_gpu_memory_gb": 78.4,
            }
            for name, value in constants.items():
                self._set(name, value, labels)
            for phase in GRAPH_PHASES:
                self._set("graph_memory_usage_gb", 0, {**labels, "phase": phase})

    def show(self, page: Gauges | None, beat: Gauges, alive_s: float, pid: int) -> None:
        """Bring the gauges and the heartbeat counters of the page to what the scheduler last reported."""
        idle = max(0.0, alive_s - beat.busy_s)
        shares = {"run_batch": beat.busy_s, "idle": idle}
        for labels in self._ranks:
            self._raise("scheduler_idle_seconds", idle, labels)
            self._raise("scheduler_process_cpu_seconds", 0.031 * alive_s + 0.35 * beat.busy_s, labels)
            for stage in SCHEDULER_STAGES:
                series = {"category": stage, **labels, "forward_overlap": "none"}
                self._raise("scheduler_stage_seconds", shares.get(stage, beat.busy_s / 40), series)
        if page is None:
            return
        prefill = self._role == "prefill"
        capacity = page.capacity_tokens or 1
        values: dict[str, float] = {
            "num_running_reqs": page.running,
            "num_queue_reqs": page.queue,
            "num_prefill_bootstrap_queue_reqs": page.bootstrap,
            "num_prefill_inflight_queue_reqs": page.inflight,
            "num_decode_prealloc_queue_reqs": page.prealloc,
            "num_decode_transfer_queue_reqs": page.transfer,
            "gen_throughput": page.gen_throughput,
            "cache_hit_rate": page.cache_hit_rate,
            "decode_sum_seq_lens": page.sequence_tokens,
            "token_usage": round(page.usage, 2),
            "full_token_usage": page.usage,
            "num_used_tokens": page.used_tokens,
            "kv_used_tokens": page.used_tokens,
            "kv_available_tokens": page.available_tokens,
            "kv_evictable_tokens": page.evictable_tokens,
            "prealloc_full_token_usage": page.pending_tokens / capacity,
            "new_token_ratio": 0.7 if prefill else 0.0,
            "utilization": -1.0 if prefill else 0.0,
            "fwd_occupancy": math.nan,
            **dict.fromkeys(_ZERO_GAUGES, 0.0),
        }
        for name, value in values.items():
            self._set(name, value, self._main)
        with_pid = {**self._main, "pid": str(pid)}
        self._set("num_retracted_reqs", page.retracted, with_pid)
        self._set("num_paused_reqs", 0, with_pid)
        for low, high in ROUTING_KEY_BANDS:
            band = {**self._main, "gt": low, "le": high}
            self._set("routing_key_running_req_count", 0, band)
            self._set("routing_key_all_req_count", 0, band)

    # ---- inside

    def _stream(self, streaming: bool) -> dict[str, str]:
        return {**self._worker, "is_streaming": "true" if streaming else "false"}

    def _add(self, name: str, amount: float, labels: Labels) -> None:
        self._registry.value(name, labels).value += amount

    def _set(self, name: str, value: float, labels: Labels) -> None:
        self._registry.value(name, labels).value = value

    def _raise(self, name: str, value: float, labels: Labels) -> None:
        """A counter never falls, not even by the rounding of differences between clock readings."""
        series = self._registry.value(name, labels)
        series.value = max(series.value, value)

    def _each(self, name: str, value: float, **extra: str) -> None:
        for labels in self._ranks:
            self._registry.histogram(name, {**labels, **extra}).observe(value)


class WorkerTelemetry:
    """All numbers of one worker: one registry, one observer a rank."""

    def __init__(self, role: Role, model_name: str, dp: int, tp: int, pid: int, started: float) -> None:
        self.role = role
        self.registry = Registry(FAMILIES)
        self.truth = Truth()
        self.ranks = [
            RankTelemetry(self.registry, role, model_name, d if dp > 1 else None, tp, self.truth)
            for d in range(dp)
        ]
        self._pid = pid
        self._started = started
        self._labels = {"engine_type": role, "model_name": model_name}

    def start(self, engines: Sequence[Engine], now: float) -> None:
        registry = self.registry
        registry.value("routing_keys_active", {})
        registry.value("failed_session_recoveries", {})
        for phase, seconds in (
            *(("load_weight", 0.41), ("kv_cache_allocation", 0.22)),
            *(("scheduler_e2e", 1.52), ("tokenizer_e2e", 1.97)),
        ):
            registry.value("startup_time_seconds", {**self._labels, "phase": phase}).value = seconds
        for phase in GRAPH_PHASES:
            registry.value("startup_cuda_graph_time_seconds", {**self._labels, "phase": phase})
        for rank, engine in zip(self.ranks, engines, strict=True):
            rank.seed(engine.gauges(now))
            rank.warm_up()

    def page(self, engines: Sequence[Engine], now: float, openmetrics: bool = False) -> bytes:
        for component, share in (("tokenizer", 0.004), ("detokenizer", 0.002)):
            cpu = self.registry.value("process_cpu_seconds", {"component": component})
            cpu.value = round(share * (now - self._started) + 0.3, 2)
        for rank, engine in zip(self.ranks, engines, strict=True):
            beat = engine.reporter.loads or engine.gauges(now)
            rank.show(engine.reporter.page, beat, beat.at - self._started, self._pid)
        return self.registry.render(openmetrics)

    def observe_loads(self, seconds: float) -> None:
        self.registry.histogram("get_loads_duration_seconds", self._labels).observe(seconds)

    def loads(
        self, engines: Sequence[Engine], now: float, sections: frozenset[str], dp_rank: int | None, limit: int
    ) -> list[dict[str, object]]:
        """The entries of ``/v1/loads``: what each rank last published, as old as it is."""
        return [
            load_entry(
                self.role, index, engine.reporter.loads or engine.gauges(now), rank.work, sections, limit
            )
            for index, (engine, rank) in enumerate(zip(engines, self.ranks, strict=True))
            if dp_rank is None or dp_rank == index
        ]

    def truth_now(self, engines: Sequence[Engine], now: float, since: float) -> dict[str, object]:
        """What is so this moment and what has been, without any of the page's delays."""
        gauges = [asdict(engine.gauges(now)) for engine in engines]
        return {"role": self.role, "at": now, "ranks": gauges, **self.truth.since(since)}
