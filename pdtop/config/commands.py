"""What ``pdtop config check|show|schema|init`` does, as plain functions: values in, text or values out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pdtop.config.keys import quote_part
from pdtop.config.load import Loaded, load
from pdtop.config.masking import MASK, Masker, secret_parts
from pdtop.config.problems import errors, warnings
from pdtop.config.schema import POLICIES, Config, Engine, node_key

INIT_TEXT = """\
# config.toml of pdtop. Every value can be changed while the console runs; it is read again at once.

[server]
host = "0.0.0.0"
port = 30000
upstream_base_url = "https://api.example.com/api"   # model API channel; never ends in /v1
upstream_api_key_env = "UPSTREAM_API_KEY"             # the name of a variable, never a key
default_model_id = "your-model-id"
# engine = "smg"                    # embedded, smg, sglang-router or external; absent: asked
# url = "http://10.0.0.10:30000"    # where the router is reached, if not at host and port
# metrics_url = "http://10.0.0.10:29000/metrics"
# api_key_env = "PDTOP_API_KEY"     # variable with the bearer key of router and workers
# admin_key_env = "PDTOP_ADMIN_KEY"
# ca_file = "/etc/ssl/router-ca.pem"

[prefill]
workers = [
    "10.0.1.11:30001",
    "10.0.1.12:30001",
]
policy = "cache_aware"
cache_aware_threshold = 0.3     # up to this spread of load the worker with the longest prefix wins
load_balance_threshold = 0.7    # beyond this spread only load counts

# [prefill.worker."10.0.1.11:30001"]
# weight = 1.0
# drain = false
# bootstrap_port = 8998
# host = "node-7"
# rack = "r2"

[decode]
workers = ["10.0.2.21:30001", "10.0.2.22:30001"]
policy = "power_of_two"

[health]
interval_secs = 5
timeout_secs = 2
unhealthy_threshold = 3

# [slo]
# ttft_p99_ms = 800
# tpot_p99_ms = 45

# [console]
# interval_secs = 2.0
# read_only = true
# theme = "dark"
# connect_to = { "10.0.2.21:30001" = "127.0.0.1:9001" }   # workers behind an SSH port forward

# [clusters.prod-b]
# config = "prod-b.toml"
"""


def check(path: Path) -> Loaded:
    """Load a file for ``config check``; see :func:`report`."""
    return load(path)


def report(loaded: Loaded) -> str:
    """All problems, one a line, errors first, and a closing line that counts them."""
    bad, doubtful = errors(loaded.problems), warnings(loaded.problems)
    lines = [f"{p.severity}: {p.text}" for p in (*bad, *doubtful)]
    count = f"{len(bad)} error{'s' * (len(bad) != 1)}, {len(doubtful)} warning{'s' * (len(doubtful) != 1)}"
    return "\n".join([*lines, f"{loaded.path.name}: {count if loaded.problems else 'fine'}"])


def show(config: Config) -> str:
    """Effective settings, defaults included, as TOML; secrets masked, unset values as comments."""
    mask = Masker([config.model_dump()])
    lines: list[str] = []
    _write_table(config.model_dump(), (), lines, mask)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, object], path: tuple[str, ...], lines: list[str], mask: Masker) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if values and path:
        lines += ["", f"[{mask('.'.join(quote_part(part) for part in path))}]"]
    for key, value in values.items():
        name = quote_part(key)
        shown = MASK if isinstance(value, str) and secret_parts(key, value) else value
        lines.append(f"# {name} is not set" if value is None else mask(f"{name} = {_toml(shown)}"))
    for key, value in table.items():
        if isinstance(value, Mapping):
            _write_table(value, (*path, key), lines, mask)


def _toml(value: object) -> str:
    from tomlkit import item  # writing is rare; reading must start fast

    return item(list(value) if isinstance(value, tuple) else value).as_string()


def schema() -> dict[str, object]:
    """JSON Schema of the file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def init_text() -> str:
    """A commented file to start from; it loads as it stands."""
    return INIT_TEXT


@dataclass(frozen=True, slots=True)
class FoundWorker:
    """A worker that a router lists. ``role`` other than prefill and decode: in no pool."""

    address: str
    role: str
    bootstrap_port: int | None = None
    draining: bool = False


@dataclass(frozen=True, slots=True)
class FoundAt:
    """What a router is and lists. ``policies`` by pool, where it tells."""

    url: str
    engine: str
    workers: tuple[FoundWorker, ...]
    policies: Mapping[str, str]


def init_text_from(found: FoundAt) -> str:
    """The same text with this router and its workers; it loads as it stands."""
    engine = {"pdtop": "embedded"}.get(found.engine, found.engine)
    known = engine in get_args(Engine)
    lines = [
        f"# config.toml of pdtop, from what {_comment(found.url)} listed.",
        "# Every value can be changed while the console runs; it is read again at once.",
        "",
        "[server]",
        f"url = {_toml(found.url)}",
        f"engine = {_toml(engine)}" if known else "# engine is not known: asked each time",
        "# metrics_url: the router's metrics page, if it is not found",
        '# api_key_env = "PDTOP_API_KEY"     # variable with the bearer key of router and workers',
        '# admin_key_env = "PDTOP_ADMIN_KEY"',
        '# restart_command = ["systemctl", "restart", "sglang-router"]   # for what needs a restart',
    ]
    for role in ("prefill", "decode"):
        lines += [
            "",
            *_pool_lines(role, [w for w in found.workers if w.role == role], found.policies.get(role)),
        ]
    others = [worker.address for worker in found.workers if worker.role not in ("prefill", "decode")]
    lines += [f"\n# its role is not known, so it is in no pool: {_comment(address)}" for address in others]
    return "\n".join(lines) + "\n" + INIT_TEXT[INIT_TEXT.index("\n[health]") :]


def _pool_lines(role: str, workers: Sequence[FoundWorker], policy: str | None) -> Iterator[str]:
    yield f"[{role}]"
    yield "workers = ["
    # Routers list their workers in any order.
    workers = sorted(workers, key=lambda worker: node_key(worker.address))
    yield from (f"    {_toml(worker.address)}," for worker in workers)
    yield "]"
    known = policy in POLICIES
    yield f"policy = {_toml(policy)}" if policy and known else '# policy = "cache_aware"    # not told'
    if role == "prefill":
        yield "# cache_aware_threshold = 0.3     # up to this spread of load the longest prefix wins"
        yield "# load_balance_threshold = 0.7    # beyond this spread only load counts"
    for worker in workers:
        port = worker.bootstrap_port if role == "prefill" else None  # decode workers have none
        own = [f"bootstrap_port = {port}"] if port is not None else []
        own += ["drain = true    # the router drains it"] if worker.draining else []
        if own:
            yield from ("", f"[{role}.worker.{quote_part(worker.address)}]", *own)


def _comment(text: str) -> str:
    """Outside text in a comment: nothing that ends the line."""
    return "".join(c if c.isprintable() else "?" for c in text)
