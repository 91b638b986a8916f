"""What each key of config.toml does at each kind of router, and the command line that says the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pdtop.cluster.address import Address, AddressError
from pdtop.config.masking import MASK, is_secret_name, secret_parts
from pdtop.config.problems import nearest
from pdtop.config.schema import Config, Health, Pool

Kind = Literal["live", "restart", "none", "pdtop", "unknown"]
PoolName = Literal["prefill", "decode"]
POOLS: tuple[PoolName, PoolName] = ("prefill", "decode")

#: What sglang-router and smg know only in memory or from their command line.
RESTART_LOSES = (
    "workers added and drains made through its API (pdtop makes them again)",
    "changed health settings, labels, priorities and costs of workers (pdtop sets the health settings again)",
    "its record of which worker holds which prefix: the hit rate starts low",
    "circuit breakers, worker ids, and all its counters, which begin at 0",
)

#: Engines that take their settings from flags, and how each is started.
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "smg": ("python3", "-m", "smg.launch_router"),
    "sglang-router": ("python3", "-m", "sglang_router.launch_router"),
}

_SGLANG_POLICIES = ("random", "round_robin", "cache_aware", "power_of_two", "manual")
_SMG_POLICIES = (
    "random",
    "round_robin",
    "passthrough",
    "cache_aware",
    "power_of_two",
    "least_load",
    "manual",
    "consistent_hashing",
    "prefix_hash",
)
_PDTOP_POLICIES = (
    "random",
    "round_robin",
    "power_of_two",
    "least_load",
    "cache_aware",
    "pair_aware",
    "prefix_hash",
)
#: Policies of sglang-router 0.3.2, smg 1.13.0 and pdtop's router.
_POLICIES = {"sglang-router": _SGLANG_POLICIES, "smg": _SMG_POLICIES, "pdtop": _PDTOP_POLICIES}

_RANDOM_IN_PD = "sglang-router 0.3.2 picks at random with cache_aware in prefill/decode mode"
_GAPS = {
    "sglang-router": (
        "connections are refused from the stop until the new process serves: about 0.5 s if nothing runs, "
        "else until the last stream ends, at most the grace period (180 s by default)"
    ),
    "smg": (
        "it serves for about 5 s more, then refuses connections until the new process serves: about 0.7 s if "
        "nothing runs, else until the last stream ends, at most the grace period (180 s by default)"
    ),
    "pdtop": "connections are refused until the new process listens; nearly all keys need no restart",
}
_FILE_ONLY = {
    "slo": "pdtop compares latencies with it",
    "load": "pdtop weighs load with it",
    "topology": "pdtop estimates transfer costs with it",
    "console": "it counts in pdtop itself",
    "keymap": "it counts in pdtop itself",
    "clusters": "it counts in pdtop itself",
}
_SERVER_PDTOP = {
    "engine": "tells pdtop which router is in front",
    "url": "where pdtop reaches the router",
    "metrics_url": "where pdtop reads the router's metrics",
    "api_key_env": "names the variable from which pdtop takes the key",
    "admin_key_env": "names the variable from which pdtop takes the key for admin calls",
    "ca_file": "pdtop trusts this CA",
    "replica_urls": "pdtop brings every change to these routers, too",
    "restart_command": "pdtop runs it when a restart has been confirmed",
    "engine_python": "pdtop router starts the engine with it",
    "status_port": "pdtop router tells its status there",
    "upstream_base_url": "the model API channel: no router in front of workers reads it",
    "upstream_api_key_env": "the model API channel: no router in front of workers reads it",
    "default_model_id": "the model API channel: no router in front of workers reads it",
}
_WORKER_PDTOP = {
    "host": "pdtop estimates transfer costs with it",
    "rack": "pdtop estimates transfer costs with it",
    "metrics_url": "where pdtop reads the worker's metrics",
    "api_key_env": "names the variable with the worker's key, which a router gets when pdtop adds the worker",
}
#: Key of [health]: flag of both routers, and name in smg's workers.
_HEALTH = {
    "interval_secs": ("--health-check-interval-secs", "check_interval_secs"),
    "timeout_secs": ("--health-check-timeout-secs", "timeout_secs"),
    "unhealthy_threshold": ("--health-failure-threshold", "failure_threshold"),
    "healthy_threshold": ("--health-success-threshold", "success_threshold"),
}
#: The routers' own knobs, which may stand in the file by name.
_KNOBS = {
    "cache_match_threshold": "--cache-threshold",
    "balance_abs_threshold": "--balance-abs-threshold",
    "balance_rel_threshold": "--balance-rel-threshold",
}
_ALIASES = {
    "--cache-match-threshold": "--cache-threshold",
    "--spill-abs-threshold": "--balance-abs-threshold",
    "--spill-rel-threshold": "--balance-rel-threshold",
}
#: What the router compares the load of the worker with the longest prefix with.
_MEASURES = {"smg": "the mean of the pool", "sglang-router": "the least loaded worker"}
_LARGEST_RATIO = 10_000.0


@dataclass(frozen=True, slots=True)
class KeyEffect:
    """What a change of one key does: at once, with a restart, nothing, to pdtop alone; one plain sentence."""

    kind: Kind
    words: str


def effect(engine: str, key_path: Sequence[str]) -> KeyEffect:
    """What the router does with a key of config.toml; ``engine`` as the file or a snapshot names it."""
    engine = _known_as(engine)
    match tuple(key_path):
        case ("load" | "topology", _) if engine == "pdtop":
            return KeyEffect("live", "the next request is scored with it")
        case (table, *_) if table in _FILE_ONLY:
            return KeyEffect("pdtop", _FILE_ONLY[table])
        case ("server", name):
            return _server_effect(engine, name)
        case ("prefill" | "decode" as role, "worker", _, name):
            return _worker_effect(engine, role, name)
        case ("prefill" | "decode" as role, name) if name in Pool.model_fields and name != "worker":
            return _pool_effect(engine, role, name)
        case ("health", name) if name in Health.model_fields:
            return _health_effect(engine, name)
        case _:
            return KeyEffect("none", "nothing reads this key")


def policies(engine: str, role: PoolName) -> tuple[str, ...]:
    """The policies that this kind of router has for a pool; empty if that is not known."""
    engine = _known_as(engine)
    known = _POLICIES.get(engine, ())
    return (*known, "bucket") if engine in PROGRAMS and role == "prefill" else known


def policy_words(engine: str, policy: str, role: PoolName) -> str:
    """What is to be said about a policy at this kind of router; "" if it does what its name says."""
    engine = _known_as(engine)
    known = policies(engine, role)
    if known and policy not in known:
        near = nearest(policy, known)
        hint = f"did you mean {near}? " if near else ""
        return f"{engine} has no {role} policy {policy}; {hint}it has {', '.join(known)}"
    if engine == "sglang-router" and policy == "cache_aware":
        return f"{_RANDOM_IN_PD} (fixed after 0.3.2)"
    return ""


def command_line(config: Config, engine: str, *, base: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The router's new command line as words; () for a router that has no flags or is not known.

    ``base`` is the present one: what the file does not speak of stays as it is there. Drained workers are
    left out, so that a restart does not bring them back. Thresholds and health settings that the file does
    not hold are left to the router. It may hold keys of ``base``: show it with :func:`masked`.
    """
    engine = _known_as(engine)
    if engine not in PROGRAMS:
        return ()
    program, present = _split(base)
    wanted = list(_flags(config))
    replaced = {flag.name for flag in wanted if flag.written} | {f"--{role}" for role in POOLS}
    kept = [flag for flag in present if _ALIASES.get(flag.name, flag.name) not in replaced]
    names = {flag.name for flag in kept}
    added = [flag for flag in wanted if flag.written or flag.name not in names]
    words = list(program or PROGRAMS[engine])
    for flag in (*kept, *added):
        words += [flag.name, *flag.values]
    return tuple(words)


def masked(argv: Iterable[str]) -> tuple[str, ...]:
    """A command line for people: keys and passwords in it replaced."""
    program, flags = _split(tuple(argv))
    words = list(program)
    for flag in flags:
        name = flag.name.removeprefix("--").replace("-", "_")
        secret = is_secret_name(name) or is_secret_name(name.removesuffix("s"))
        words += [flag.name, *(MASK if secret else _masked_value(value) for value in flag.values)]
    return tuple(words)


def translations(config: Config, engine: str) -> tuple[str, ...]:
    """What the command line says otherwise than the file, or not at all, in words."""
    engine = _known_as(engine)
    if engine not in PROGRAMS:
        return ()
    return (
        *_threshold_words(config, engine),
        *_health_words(config.health),
        *_worker_words(config, engine),
        *(words for role in POOLS if (words := policy_words(engine, config.pool(role).policy, role))),
    )


def restart_gap(engine: str) -> str:
    """What clients notice of a restart (stop, wait for the end, start)."""
    unknown = "it is not known how long this router refuses connections at a restart"
    return _GAPS.get(_known_as(engine), unknown)


def refuses_to_start(config: Config, engine: str) -> str | None:
    """Why the router would not come back after a restart from this file; None if it would."""
    engine = _known_as(engine)
    for role in POOLS:
        pool = config.pool(role)
        known = policies(engine, role)
        if known and pool.policy not in known:
            return policy_words(engine, pool.policy, role)
        left = len(pool.workers) - len(_drained(pool))
        if engine in PROGRAMS and pool.policy == "power_of_two" and left < 2:
            drained = f" ({len(_drained(pool))} drained)" if _drained(pool) else ""
            return (
                f"{engine} refuses to start with power_of_two and fewer than 2 {role} workers: "
                f"the command line would have {left}{drained}"
            )
    return None


def health_fields(health: Health) -> dict[str, int]:
    """[health] as smg's workers take it, in whole seconds; only what the file holds."""
    return {
        name: _whole(getattr(health, key))
        for key, (_, name) in _HEALTH.items()
        if key in health.model_fields_set
    }


def _known_as(engine: str) -> str:
    """The file says ``embedded`` for what a snapshot calls ``pdtop``."""
    return "pdtop" if engine == "embedded" else engine


def _not_known(engine: str) -> KeyEffect:
    if engine == "unknown":
        return KeyEffect("unknown", "it is not known yet which router is in front")
    return KeyEffect("unknown", "pdtop does not know what this router does with it")


def _server_effect(engine: str, name: str) -> KeyEffect:
    if name in _SERVER_PDTOP:
        return KeyEffect("pdtop", _SERVER_PDTOP[name])
    if name not in ("host", "port", "request_timeout_secs"):
        return KeyEffect("none", "nothing reads this key")
    if engine not in PROGRAMS and engine != "pdtop":
        return _not_known(engine)
    if name != "request_timeout_secs":
        return KeyEffect("restart", "the router listens there after a restart")
    if engine == "pdtop":
        return KeyEffect("live", "counts from the next request on")
    return KeyEffect("restart", "counts after a restart of the router (--request-timeout-secs)")


def _pool_effect(engine: str, role: str, name: str) -> KeyEffect:
    if engine == "pdtop":
        if name in _KNOBS:
            return KeyEffect("none", f"no effect here: {name} is a knob of other routers")
        return KeyEffect("live", "counts from the next request on")
    if engine not in PROGRAMS:
        return _not_known(engine)
    if name == "workers":
        return KeyEffect("live", "pdtop adds and removes workers through the router's API")
    if name == "policy":
        return KeyEffect("restart", f"counts after a restart of the router (--{role}-policy)")
    if name == "load_balance_threshold":
        words = "no effect here: the router has one limit for affinity, and cache_aware_threshold sets it"
        return KeyEffect("none", words)
    if engine == "sglang-router":
        return KeyEffect("none", f"no effect here: {_RANDOM_IN_PD}")
    flag = _KNOBS.get(name, "--balance-rel-threshold")
    return KeyEffect("restart", f"counts after a restart of the router ({flag}, for both pools)")


def _worker_effect(engine: str, role: str, name: str) -> KeyEffect:
    if name == "bootstrap_port" and role == "decode":
        return KeyEffect("none", "no effect: only prefill workers have a bootstrap port")
    if engine == "pdtop" and name in ("host", "rack"):
        return KeyEffect("live", "the next pair is scored with it")
    if name in _WORKER_PDTOP:
        return KeyEffect("pdtop", _WORKER_PDTOP[name])
    if name not in ("weight", "drain", "bootstrap_port"):
        return KeyEffect("none", "nothing reads this key")
    if engine == "pdtop":
        return KeyEffect("live", "counts from the next request on")
    if engine not in PROGRAMS:
        return _not_known(engine)
    if name == "weight":
        return KeyEffect("none", f"no effect here: {engine} has no weights; it is only recorded")
    if name == "drain":
        return KeyEffect("live", "pdtop takes the worker out of the router, or back in, through its API")
    return KeyEffect("live", "pdtop takes the worker out and adds it again with the new port")


def _health_effect(engine: str, name: str) -> KeyEffect:
    match engine:
        case "pdtop":
            return KeyEffect("live", "counts from the next probe on")
        case "smg":
            return KeyEffect("live", "pdtop sets it at every worker through the router's API")
        case "sglang-router":
            return KeyEffect("restart", f"counts after a restart of the router ({_HEALTH[name][0]})")
        case _:
            return _not_known(engine)


@dataclass(frozen=True, slots=True)
class _Flag:
    """``written``: the file says it; else it only fills in what the present command line lacks."""

    name: str
    values: tuple[str, ...] = ()
    written: bool = True


def _flags(config: Config) -> Iterator[_Flag]:
    server = config.server
    host, port = server.host, server.port
    if server.url is not None and "port" not in server.model_fields_set:
        port = _port_of(server.url) or port
    yield _Flag("--host", (host,), "host" in server.model_fields_set)
    yield _Flag("--port", (str(port),), "port" in server.model_fields_set)
    if server.metrics_url is not None and (metrics_port := _port_of(server.metrics_url)):
        yield _Flag("--prometheus-port", (str(metrics_port),))
    if "request_timeout_secs" in server.model_fields_set:
        yield _Flag("--request-timeout-secs", (str(_whole(server.request_timeout_secs)),))
    yield _Flag("--pd-disaggregation")
    for role in POOLS:
        pool = config.pool(role)
        drained = _drained(pool)
        for worker in pool.workers:
            if worker not in drained:
                bootstrap = pool.settings_of(worker).bootstrap_port if role == "prefill" else None
                values = (_url(worker), str(bootstrap)) if bootstrap is not None else (_url(worker),)
                yield _Flag(f"--{role}", values)
    for role in POOLS:
        pool = config.pool(role)
        yield _Flag(f"--{role}-policy", (pool.policy,), "policy" in pool.model_fields_set)
    yield from _threshold_flags(config.pool(_leading(config)))
    for key, (flag, _) in _HEALTH.items():
        if key in config.health.model_fields_set:
            yield _Flag(flag, (str(_whole(getattr(config.health, key))),))


def _leading(config: Config) -> PoolName:
    """The pool whose thresholds count: routers have one set for both."""
    prefill_balances = config.prefill.policy in ("cache_aware", "bucket")
    return "decode" if config.decode.policy == "cache_aware" and not prefill_balances else "prefill"


def _threshold_flags(pool: Pool) -> Iterator[_Flag]:
    for key, flag in _KNOBS.items():
        value = getattr(pool, key)
        if value is not None:
            yield _Flag(flag, (_number(value),))
    if pool.balance_rel_threshold is None and "cache_aware_threshold" in pool.model_fields_set:
        yield _Flag("--balance-rel-threshold", (_number(_ratio(pool.cache_aware_threshold)),))


def _ratio(spread: float) -> float:
    """Spread s = (max - min) / max is a ratio max / min of 1 / (1 - s)."""
    return min(_LARGEST_RATIO, 1 / (1 - spread)) if spread < 1 else _LARGEST_RATIO


def _threshold_words(config: Config, engine: str) -> Iterator[str]:
    role = _leading(config)
    pool = config.pool(role)
    written = pool.model_fields_set
    if "cache_aware_threshold" in written and pool.balance_rel_threshold is None:
        ratio = _ratio(pool.cache_aware_threshold)
        never = ", which is never" if ratio == _LARGEST_RATIO else ""
        least = pool.balance_abs_threshold
        yield (
            f"[{role}] cache_aware_threshold {pool.cache_aware_threshold:g} becomes "
            f"--balance-rel-threshold {_number(ratio)}{never}: {engine} compares with {_MEASURES[engine]}, "
            f"and only beyond --balance-abs-threshold ({'64 by default' if least is None else least})"
        )
    if "load_balance_threshold" in written:
        yield (
            f"[{role}] load_balance_threshold {pool.load_balance_threshold:g} is left out: "
            f"{engine} has one limit for affinity, not two"
        )
    other: PoolName = "decode" if role == "prefill" else "prefill"
    ignored = [
        key
        for key in ("cache_aware_threshold", "load_balance_threshold", *_KNOBS)
        if key in config.pool(other).model_fields_set
        and getattr(config.pool(other), key) != getattr(pool, key)
    ]
    if ignored:
        yield (
            f"[{other}] {', '.join(ignored)}: left out, {engine} has one set for both pools, "
            f"and that of [{role}] counts"
        )


def _health_words(health: Health) -> Iterator[str]:
    for key, (flag, _) in _HEALTH.items():
        value = getattr(health, key)
        if key in health.model_fields_set and _whole(value) != value:
            yield f"[health] {key} {value:g} becomes {flag} {_whole(value)}: whole seconds only"


def _worker_words(config: Config, engine: str) -> Iterator[str]:
    drained = [worker for role in POOLS for worker in _drained(config.pool(role))]
    if drained:
        yield f"left out because they are drained: {', '.join(drained)}"
    weighted = [
        worker
        for role in POOLS
        for worker in config.pool(role).workers
        if config.pool(role).settings_of(worker).weight != 1
    ]
    if weighted:
        yield f"weights are left out ({', '.join(weighted)}): {engine} has none"


def _drained(pool: Pool) -> tuple[str, ...]:
    return tuple(worker for worker in pool.workers if pool.settings_of(worker).drain)


def _split(argv: Sequence[str]) -> tuple[tuple[str, ...], list[_Flag]]:
    """Program words, and flags each with its values; ``--name=value`` counts as both."""
    at = next((index for index, word in enumerate(argv) if word.startswith("--")), len(argv))
    flags: list[_Flag] = []
    for word in argv[at:]:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flags.append(_Flag(name, (value,) if equals else ()))
        else:
            last = flags.pop()
            flags.append(_Flag(last.name, (*last.values, word)))
    return tuple(argv[:at]), flags


def _masked_value(value: str) -> str:
    for secret in secret_parts("", value):
        value = value.replace(secret, MASK)
    return value


def _url(worker: str) -> str:
    try:
        return Address.parse(worker).base_url
    except AddressError:
        return worker  # the check of the file says what is wrong with it


def _port_of(url: str) -> int | None:
    try:
        parts = urlsplit(url)
        return parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def _whole(value: float) -> int:
    """At least 1: smg refuses 0."""
    return max(1, round(value))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value != int(value) else str(int(value))
