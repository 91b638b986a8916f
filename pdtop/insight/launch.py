"""Advice on launch options, read from what workers say of themselves; a table of rules, nothing is changed.

Most wrong combinations are refused at the start and cannot be met in a running worker. These are the ones
that start: they do nothing, cost speed, fail later or fail with the next release. Measured on SGLang 0.5.23.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pdtop.cluster.model import Finding, Identity, Role, Severity, Snapshot, Worker
from pdtop.insight.words import several


@dataclass(frozen=True, slots=True)
class Advice:
    """One rule met by one worker: ``about`` in a few words, ``why`` it matters, what to launch instead."""

    worker: str  # key
    about: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Rule:
    """``applies`` is told the worker alone."""

    about: str
    why: str
    fix: str
    applies: Callable[[Worker], bool]


def _flag(identity: Identity, name: str) -> str:
    """As the worker says it; "" if it does not, or says none."""
    value = identity.flags.get(name, "")
    return "" if value in ("null", "None") else value


def _on(identity: Identity, name: str) -> bool:
    return _flag(identity, name) == "true"


def _whole(identity: Identity, name: str) -> int | None:
    value = _flag(identity, name)
    return int(value) if value.isdecimal() and len(value) <= 9 else None


def _ranks(worker: Worker) -> int:
    return worker.identity.dp_size or 1


def _attention_dp(worker: Worker) -> bool:
    identity = worker.identity
    return _on(identity, "enable_dp_attention") or (_whole(identity, "attn_dp_size") or 1) > 1


def _one_card_a_request(worker: Worker) -> bool:
    return (
        worker.role is Role.PREFILL
        and _attention_dp(worker)
        and _ranks(worker) > 1
        and _ranks(worker) == worker.identity.tp_size
    )


def _without_width(worker: Worker) -> bool:
    return _on(worker.identity, "enable_dp_attention") and worker.identity.dp_size == 1


def _uneven_experts(worker: Worker) -> bool:
    tp, ep = worker.identity.tp_size, _whole(worker.identity, "ep_size")
    return tp is not None and ep is not None and ep > 1 and tp % ep != 0


def _uneven_dense(worker: Worker) -> bool:
    tp, dense = worker.identity.tp_size, _whole(worker.identity, "moe_dense_tp_size")
    return tp is not None and dense is not None and dense not in (1, tp)


def _pinned_ranks(worker: Worker) -> bool:
    """P with DP ranks of which a router lists each apart, and so chooses the rank itself."""
    listed_apart = any(len(opinion.worker_ids) > 1 for opinion in worker.opinions)
    method = _flag(worker.identity, "load_balance_method")
    return (
        worker.role is Role.PREFILL
        and listed_apart
        and _ranks(worker) > 1
        and method in ("auto", "follow_bootstrap_room")
    )


def _old_balancing(worker: Worker) -> bool:
    return _flag(worker.identity, "load_balance_method") in ("shortest_queue", "minimum_tokens")


def _fake_transfer(worker: Worker) -> bool:
    return worker.role is not Role.UNIFIED and worker.identity.transfer_backend == "fake"


def _colon(worker: Worker) -> bool:
    return ":" in (worker.identity.model or "").replace("://", "")


RULES: Sequence[Rule] = (
    Rule(
        "dp_size equals tp_size on prefill",
        "one card works on each request, so its first token takes several times as long",
        "prefill by TP: --tp-size N with one DP rank; DP attention belongs on decode",
        _one_card_a_request,
    ),
    Rule(
        "enable_dp_attention with one DP rank",
        "DP attention is off: the flag does nothing and is deprecated",
        "leave it out, or give the width: --attn-dp-size N (0.5.22 on), before that --dp-size N",
        _without_width,
    ),
    Rule(
        "ep_size does not divide tp_size",
        "accepted at the start, but the engine fails later",
        "choose an ep_size that divides tp_size",
        _uneven_experts,
    ),
    Rule(
        "moe_dense_tp_size is neither 1 nor tp_size",
        "0.5.23 refuses to start with it",
        "leave it out, or give 1 or tp_size",
        _uneven_dense,
    ),
    Rule(
        "prefill chooses its DP rank by the bootstrap room, and so does the router",
        "each request on which the two differ fails with a follow_bootstrap_room conflict",
        "--load-balance-method round_robin, or SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK=1",
        _pinned_ranks,
    ),
    Rule(
        "load_balance_method of an old release",
        "shortest_queue and minimum_tokens are refused after 0.5.7",
        "total_requests or total_tokens, before the next upgrade",
        _old_balancing,
    ),
    Rule(
        "transfer backend fake",
        "no KV is sent: answers are of no use",
        "mooncake or nixl on both roles; fake is for benchmarks of decode alone",
        _fake_transfer,
    ),
    Rule(
        "served model name with a colon",
        "0.5.23 refuses to start with it",
        "--served-model-name without a colon",
        _colon,
    ),
)


def _option(name: str) -> Callable[[Identity], str | None]:
    def get(identity: Identity) -> str | None:
        value = _flag(identity, name)
        return value if value not in ("", "auto") else None

    return get


#: What prefill and decode workers must have in common; ``auto`` says nothing, since it differs by model.
SHARED: Sequence[tuple[str, Callable[[Identity], str | None]]] = (
    ("model", lambda identity: identity.model and identity.model.rstrip("/").rpartition("/")[2]),  # no folder
    ("transfer backend", lambda identity: identity.transfer_backend),
    ("KV dtype", _option("kv_cache_dtype")),
    ("page size", _option("page_size")),
    ("allocation policy", _option("disaggregation_decode_allocation_policy")),
)


def advice(snapshot: Snapshot) -> tuple[Advice, ...]:
    """Every rule that a worker meets, in the order of the workers and of the rules."""
    pair = tuple(w for w in snapshot.workers if w.role in (Role.PREFILL, Role.DECODE))
    unlike = _unlike(pair)
    clashes = _same_bootstrap_port(pair)
    found: list[Advice] = []
    for worker in snapshot.workers:
        found += [
            Advice(worker.key, rule.about, rule.why, rule.fix) for rule in RULES if rule.applies(worker)
        ]
        found += [one for one in (*unlike, *clashes) if one.worker == worker.key]
    return tuple(found)


def findings(snapshot: Snapshot) -> Iterator[Finding]:
    """One quiet finding for each worker with advice."""
    by_worker: dict[str, list[Advice]] = {}
    for one in advice(snapshot):
        by_worker.setdefault(one.worker, []).append(one)
    for worker in snapshot.workers:
        told = by_worker.get(worker.key)
        if not told:
            continue
        more = f"; {len(told) - 1} more" if len(told) > 1 else ""
        yield Finding(
            Severity.INFO,
            "launch_advice",
            f"launch options: {told[0].about}{more}",
            worker=worker.key,
            pool=worker.role,
            evidence="; ".join(f"{one.about}: {one.why}" for one in told),
            fix="advice only: " + "; ".join(dict.fromkeys(one.fix for one in told)),
        )


def _unlike(workers: Sequence[Worker]) -> list[Advice]:
    """Decode workers that differ from every prefill worker. Within a pool there are findings for it."""
    found: list[Advice] = []
    for what, get in SHARED:
        said = Counter(
            value for w in workers if w.role is Role.PREFILL and (value := get(w.identity)) is not None
        )
        if not said:
            continue
        usual, _ = said.most_common(1)[0]
        for worker in workers:
            value = get(worker.identity)
            if worker.role is Role.DECODE and value is not None and value not in said:
                found.append(
                    Advice(
                        worker.key,
                        f"{what} {value}, prefill has {usual}",
                        f"prefill and decode must have the same {what}",
                        f"give both roles the same {what}",
                    )
                )
    return found


def _same_bootstrap_port(workers: Sequence[Worker]) -> list[Advice]:
    """Two prefill workers of one host with one bootstrap port, unless the host is only a port forward."""
    shared: dict[tuple[str, int], list[Worker]] = {}
    for worker in workers:
        host, port = worker.key.rpartition(":")[0], worker.identity.bootstrap_port
        if worker.role is Role.PREFILL and port is not None and not _loopback(host):
            shared.setdefault((host, port), []).append(worker)
    return [
        Advice(
            worker.key,
            f"bootstrap port {port} is that of {several(len(group) - 1, 'other worker')} on {host}",
            "on one network the second one fails at run time",
            "give each prefill worker of a host its own --disaggregation-bootstrap-port",
        )
        for (host, port), group in shared.items()
        if len(group) > 1
        for worker in group
    ]


def _loopback(host: str) -> bool:
    return host in ("localhost", "[::1]", "::1") or host.startswith("127.")
