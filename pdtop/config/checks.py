"""What types and ranges do not say: unknown keys, secrets, addresses, and values that do not fit together.

``check_document`` looks at the file as parsed, even when other things in it are wrong; ``check_values`` looks
at the effective settings. Both give the path of each problem; the caller adds file, line and value.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from typing import Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel

from pdtop.config.keys import Path, join_key
from pdtop.config.masking import find_secrets
from pdtop.config.problems import Problem, ProblemSeverity, nearest
from pdtop.config.schema import POLICIES, Config, Pool, node_key

Found = tuple[Path, Problem]
PoolName = Literal["prefill", "decode"]
POOL_NAMES: tuple[PoolName, PoolName] = ("prefill", "decode")

_PORT = re.compile(r":([^:\]/@]*)\Z")


def check_document(document: Mapping[str, object]) -> Iterator[Found]:
    """Problems of the file as parsed."""
    if not document:
        rule = "the file is empty: it holds no settings"
        yield (), Problem("error", "empty", rule, fix="`pdtop config init` prints one to start from")
        return
    secret_paths = set()
    for path, _ in find_secrets(document):
        if path not in secret_paths:
            secret_paths.add(path)
            yield path, secret_problem(path)
    for path, known in _unknown_keys(Config, document, ()):
        if path not in secret_paths:
            yield path, _unknown(path, known)
    for name in POOL_NAMES:
        pool = document.get(name)
        if isinstance(pool, Mapping):
            yield from _worker_addresses(pool, name)
            yield from _policy(document, pool, name)


def check_values(config: Config) -> Iterator[Found]:
    """Problems of effective settings, each of which is valid by itself."""
    yield from _check_server(config)
    for name in POOL_NAMES:
        yield from _check_pool(config, name)
    both = {node_key(w) for w in config.prefill.workers} & {node_key(w) for w in config.decode.workers}
    for index, worker in enumerate(config.decode.workers):
        if node_key(worker) in both:
            rule = "the same worker stands under prefill, too"
            yield ("decode", "workers", index), _problem("warning", "duplicate_worker", rule)
    if config.health.timeout_secs > config.health.interval_secs:
        rule = f"longer than interval_secs ({config.health.interval_secs:g}): probes overlap"
        yield ("health", "timeout_secs"), _problem("warning", "cross_check", rule)


def _problem(
    severity: ProblemSeverity, kind: str, rule: str, fix: str = "", near: str | None = None
) -> Problem:
    return Problem(severity, kind, rule, suggestion=near, fix=fix)


def secret_problem(path: Path) -> Problem:
    names = [part for part in path if isinstance(part, str)]
    last = names[-1] if names else ""
    if last.endswith("_env"):
        rule = "must be the name of an environment variable, not the key itself"
        return _problem("warning", "secret_in_file", rule, "put the key in a variable and its name here")
    fix = f"put it in an environment variable, name that in {last}_env, and change the key"
    return _problem("warning", "secret_in_file", "a literal key or password stands in the file", fix)


def _unknown(path: Path, known: tuple[str, ...]) -> Problem:
    name = str(path[-1])
    near = nearest(name, known)
    fix = ""
    if near is None:
        homes = [join_key(home) for home in _HOMES.get(name, ())]
        fix = f"it belongs to {' or '.join(f'[{home}]' for home in homes)}" if homes else ""
    return _problem("warning", "unknown_key", "is not a known key and has no effect", fix, near)


def _unknown_keys(
    model: type[BaseModel], table: Mapping[str, object], path: Path
) -> Iterator[tuple[Path, tuple[str, ...]]]:
    known = tuple(model.model_fields)
    for key, value in table.items():
        here = (*path, key)
        if key not in known:
            yield here, known
            continue
        inner, by_name = _inner_model(model.model_fields[key].annotation)
        if inner is None or not isinstance(value, Mapping):
            continue
        if by_name:
            for name, entry in value.items():
                if isinstance(entry, Mapping):
                    yield from _unknown_keys(inner, entry, (*here, name))
        else:
            yield from _unknown_keys(inner, value, here)


def _inner_model(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """The model behind a field's type, and whether the field is a table of such tables."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        models = [found for arg in get_args(annotation) if (found := _inner_model(arg))[0]]
        return models[0] if models else (None, False)
    if origin is dict:
        return _inner_model(get_args(annotation)[1])[0], True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    return None, False


def _homes(model: type[BaseModel], path: Path = ()) -> Iterator[tuple[str, Path]]:
    """Every known key with the table it belongs to."""
    for key, info in model.model_fields.items():
        if path:
            yield key, path
        inner, by_name = _inner_model(info.annotation)
        if inner is not None:
            yield from _homes(inner, (*path, key, *(("NAME",) if by_name else ())))


_HOMES: dict[str, list[Path]] = {}
for _key, _path in _homes(Config):
    _HOMES.setdefault(_key, []).append(_path)


def _worker_addresses(pool: Mapping[str, object], name: PoolName) -> Iterator[Found]:
    workers = pool.get("workers")
    seen: dict[str, str] = {}
    for index, worker in enumerate(workers if isinstance(workers, list) else ()):
        path = (name, "workers", index)
        if not isinstance(worker, str):
            continue  # the schema says so
        if problem := _address_problem(worker):
            yield path, problem
        key = node_key(worker)
        if key in seen:
            rule = f"the same worker is listed twice (as {seen[key]})"
            yield path, _problem("warning", "duplicate_worker", rule)
        seen.setdefault(key, worker)
    tables = pool.get("worker")
    for written in tables if isinstance(tables, Mapping) else ():
        if problem := _address_problem(written):
            yield (name, "worker", written), problem
        elif node_key(written) not in seen:
            rule = f"a table for a worker that is not in {name}.workers has no effect"
            near = nearest(written, seen.values())
            yield (name, "worker", written), _problem("warning", "unlisted_worker", rule, near=near)


def _address_problem(address: str) -> Problem | None:
    if not address.strip():
        return _problem("error", "worker_address", "a worker's address is empty")
    if any(c.isspace() or not c.isprintable() for c in address):
        return _problem("error", "worker_address", "an address must not hold blanks or control characters")
    if "://" in address and not address.lower().startswith(("http://", "https://")):
        return _problem("error", "worker_address", "only http:// and https:// addresses can be read")
    port = _PORT.search(node_key(address))
    if port is None:
        if "://" in address:
            return None
        return _problem("warning", "worker_address", "has no port", "write host:port")
    if not port[1].isdigit() or not 1 <= int(port[1]) <= 65535:
        return _problem("error", "worker_address", f"{port[1] or 'an empty text'} is not a port (1 to 65535)")
    return None


def _check_server(config: Config) -> Iterator[Found]:
    base = config.server.upstream_base_url
    if base is not None and urlsplit(base).path.rstrip("/").endswith("/v1"):
        rule = "ends in /v1; the path /v1/... is added to it, so requests would go to /v1/v1/..."
        near = f'"{base.rstrip("/")[:-3]}"'
        yield ("server", "upstream_base_url"), _problem("warning", "base_url_v1", rule, near=near)


def _check_pool(config: Config, name: PoolName) -> Iterator[Found]:
    pool = config.pool(name)
    if pool.cache_aware_threshold > pool.load_balance_threshold:
        low, high = pool.cache_aware_threshold, pool.load_balance_threshold
        rule = f"cache_aware_threshold ({low:g}) is above load_balance_threshold ({high:g})"
        given = next(
            (k for k in ("cache_aware_threshold", "load_balance_threshold") if k in pool.model_fields_set),
            "cache_aware_threshold",
        )
        yield (name, given), _problem("warning", "cross_check", rule, "keep it at or below")
    yield from _check_power_of_two(config, name)
    if "workers" in pool.model_fields_set and not pool.workers:
        yield (name, "workers"), _problem("warning", "empty_pool", "the pool has no worker")
    yield from _check_all_out(name, pool)


def _policy(document: Mapping[str, object], pool: Mapping[str, object], name: PoolName) -> Iterator[Found]:
    server, policy = document.get("server"), pool.get("policy")
    known = tuple(p for p in POLICIES if name == "prefill" or p != "bucket")
    external = isinstance(server, Mapping) and server.get("engine") == "external"
    if isinstance(policy, str) and policy not in known and not external:
        rule = f"must be one of {', '.join(known)}"
        fix = 'with engine = "external" any name is taken'
        yield (name, "policy"), _problem("error", "policy", rule, fix, nearest(policy, known))


def _check_power_of_two(config: Config, name: PoolName) -> Iterator[Found]:
    pool, engine = config.pool(name), config.server.engine
    if pool.policy == "power_of_two" and engine in ("smg", "sglang-router") and len(pool.workers) == 1:
        rule = f"{engine} refuses to start with power_of_two and a single worker"
        yield (name, "policy"), _problem("warning", "power_of_two", rule)


def _check_all_out(name: PoolName, pool: Pool) -> Iterator[Found]:
    tables = [pool.settings_of(worker) for worker in pool.workers]
    if tables and all(table.weight == 0 or table.drain for table in tables):
        rule = "every worker of the pool has weight 0 or drains: nothing can take a request"
        yield (name, "worker"), _problem("warning", "pool_out", rule)
