"""The demo's scenarios as data: which workers, which faults, which load, which policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from pdtop.simulator.decode import DecodeModel
from pdtop.simulator.engine import Site
from pdtop.simulator.prefill import PrefillModel
from pdtop.simulator.spec import Fault, WorkerSpec
from pdtop.simulator.traffic import Traffic

Scenario = Literal[
    "steady",
    "burst",
    "hot-prefix",
    "slow-decode",
    "kv-full",
    "transfer-stall",
    "dead-worker",
    "frozen-worker",
]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)

#: Requests per second that keep one prefill worker of the default model about a third busy.
RATE_PER_PREFILL = 2.0

#: When the trouble of a scenario begins, seconds after the start: late enough to see the calm before.
TROUBLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be started. ``victim`` is the index of a decode worker that needs its own process."""

    prefill: tuple[WorkerSpec, ...]
    decode: tuple[WorkerSpec, ...]
    traffic: Traffic
    prefill_policy: str = "cache_aware"
    decode_policy: str = "power_of_two"
    cache_aware_threshold: float = 0.3  # of prefill
    load_balance_threshold: float = 0.7
    affinity_guard: float = 16.0
    victim: int | None = None


def plan(scenario: Scenario, prefill: int, decode: int, rate: float | None, seed: int) -> Plan:
    """The cluster of a scenario, without ports. ``rate`` None: fitting to the number of workers."""
    traffic = Traffic(rate=rate if rate is not None else RATE_PER_PREFILL * prefill)
    calm = Plan(
        prefill=tuple(
            WorkerSpec(
                role="prefill",
                seed=seed * 1000 + i,
                stream_interval=4,
                prefill=PrefillModel(site=Site(f"node-p{i}", f"r{i % 2}")),
            )
            for i in range(prefill)
        ),
        decode=tuple(
            WorkerSpec(
                role="decode",
                seed=seed * 1000 + 500 + i,
                stream_interval=4,
                decode=DecodeModel(site=Site(f"node-d{i}", f"r{i % 2}")),
            )
            for i in range(decode)
        ),
        traffic=traffic,
    )
    return _with_trouble(calm, scenario)


def later(wanted: Plan, seconds: float) -> Plan:
    """The same with its trouble so much later after the workers' start: for a router that takes long."""

    def delayed(spec: WorkerSpec) -> WorkerSpec:
        return replace(spec, faults=tuple(replace(fault, at=fault.at + seconds) for fault in spec.faults))

    return replace(
        wanted, prefill=tuple(map(delayed, wanted.prefill)), decode=tuple(map(delayed, wanted.decode))
    )


def _with_trouble(calm: Plan, scenario: Scenario) -> Plan:
    traffic = calm.traffic
    match scenario:
        case "steady":
            return calm
        case "burst":
            bursts = replace(traffic, burst_every_s=12.0, burst_for_s=4.0, burst_factor=5.0)
            return replace(calm, traffic=bursts)
        case "hot-prefix":
            # Affinity sends one popular system prompt to one worker: thresholds let it, until they are lower.
            hot = replace(
                traffic, rate=traffic.rate * 1.5, shared=0.9, hot=0.8, prompt_median=2600, prefix_tokens=512
            )
            # Decode gives memory before prefill computes; with little of it the others would starve, too.
            roomy = _with_kv(calm.decode, 120_000)
            always = replace(
                calm, cache_aware_threshold=1.0, load_balance_threshold=1.0, affinity_guard=1000.0
            )
            return replace(always, decode=roomy, traffic=hot)
        case "slow-decode":
            # Many short answers and no policy that spares the slow one: its time per token shows soon.
            short = replace(traffic, rate=traffic.rate * 1.6, output_median=60, prompt_median=800)
            slow = _with_fault(calm.decode, Fault("slow", TROUBLE_S, 3.5))
            return replace(calm, decode=slow, traffic=short, decode_policy="round_robin")
        case "kv-full":
            small = _with_kv(calm.decode, 9_000, reserve_tokens=32)
            longer = replace(traffic, rate=traffic.rate * 1.3, prompt_median=1600, prompt_max=6000)
            return replace(calm, decode=small, traffic=longer, prefill_policy="round_robin")
        case "transfer-stall":
            # A policy that looks at load would spare the slow one, and hardly anybody would notice.
            slow_sender = _with_fault(calm.prefill, Fault("transfer_slow", TROUBLE_S, 120.0))
            return replace(calm, prefill=slow_sender, prefill_policy="round_robin")
        case "dead-worker":
            victim = len(calm.decode) - 1
            return replace(calm, decode=_with_fault(calm.decode, Fault("die", TROUBLE_S)), victim=victim)
        case "frozen-worker":
            return replace(calm, decode=_with_fault(calm.decode, Fault("hang", TROUBLE_S)))


def _with_kv(
    specs: tuple[WorkerSpec, ...], kv_tokens: int, reserve_tokens: int = 256
) -> tuple[WorkerSpec, ...]:
    return tuple(
        replace(s, decode=replace(s.decode, kv_tokens=kv_tokens, reserve_tokens=reserve_tokens))
        for s in specs
    )


def _with_fault(specs: tuple[WorkerSpec, ...], fault: Fault) -> tuple[WorkerSpec, ...]:
    """The last worker has it: with several, the others show what normal looks like."""
    return (*specs[:-1], replace(specs[-1], faults=(fault,)))
