"""What config.toml may say: names, types, ranges and defaults.

The base form (server, prefill, decode, health) loads unchanged; all else is optional. Unknown keys are
kept (``model_extra``) and warned about by :mod:`pdtop.config.checks`, never fatal. Types are strict: a bool
is not a number and text is not a number; NaN and infinity are refused everywhere. Units are in the names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Engine = Literal["embedded", "smg", "sglang-router", "external"]

#: What the embedded router means by load.
Measure = Literal["requests", "running_waiting", "tokens"]

#: Policies of sglang-router 0.3.2, smg 1.13.0 and the embedded router; a pool may use another one only
#: with ``engine = "external"``. ``bucket`` exists for prefill alone, ``pair_aware`` in the embedded router.
POLICIES = (
    "cache_aware",
    "power_of_two",
    "round_robin",
    "random",
    "manual",
    "least_load",
    "consistent_hashing",
    "prefix_hash",
    "passthrough",
    "bucket",
    "pair_aware",
)


def _web_address(value: str) -> str:
    if not value.lower().startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    if any(c.isspace() or not c.isprintable() for c in value):
        raise ValueError("must not hold blanks or control characters")
    return value


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Table(BaseModel):
    """Base of every table: frozen, strict, unknown keys kept."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)


class Server(Table):
    """``[server]``: the router in front, and the channel to the model API."""

    host: str = "0.0.0.0"  # noqa: S104 - what the router binds, as in the base form
    port: Port = 30000
    upstream_base_url: WebAddress | None = None
    upstream_api_key_env: str | None = None
    default_model_id: str | None = None
    engine: Engine | None = Field(
        None, description="which router is in front; absent: found out by asking it"
    )
    url: WebAddress | None = Field(None, description="where pdtop reaches the router; absent: host and port")
    metrics_url: WebAddress | None = Field(None, description="the router's own metrics page")
    api_key_env: str = Field(
        "PDTOP_API_KEY", description="variable with the bearer key for router and workers"
    )
    admin_key_env: str = Field("PDTOP_ADMIN_KEY", description="variable with the key for admin calls")
    ca_file: str | None = Field(None, description="PEM file of the CA that signed router and workers")
    replica_urls: Annotated[tuple[WebAddress, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="further routers in front of the same workers; every change goes to each"
    )
    request_timeout_secs: Positive = Field(
        1800.0, description="longest that the embedded router lets one request take"
    )
    restart_command: Texts = Field(
        (), description="restarts the router, as words without a shell: for changes that need it"
    )
    engine_python: str | None = Field(
        None, description="interpreter that has smg or sglang-router, for `pdtop router`; absent: pdtop's own"
    )
    status_port: Port | None = Field(
        None, description="where `pdtop router` tells its status on 127.0.0.1; absent: port + 1"
    )

    @property
    def router_url(self) -> str:
        """``url``, else host and port; a wildcard host means this machine."""
        if self.url is not None:
            return self.url
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def names_router(self) -> bool:
        """The file says that there is a router (an address is given, not only a default)."""
        return bool(self.model_fields_set & {"url", "port", "host"})

    def api_key(self) -> str | None:
        """Bearer key from the environment; an empty variable is no key."""
        return os.environ.get(self.api_key_env) or None

    def admin_key(self) -> str | None:
        """Admin key from the environment, else the bearer key."""
        return os.environ.get(self.admin_key_env) or self.api_key()


class WorkerTable(Table):
    """``[prefill.worker."host:port"]``: what is special about one worker."""

    weight: NotNegative = 1.0
    drain: bool = False
    bootstrap_port: Port | None = None
    host: str | None = Field(None, description="machine it runs on, for transfer costs")
    rack: str | None = None
    metrics_url: WebAddress | None = None
    api_key_env: str | None = Field(
        None, description="variable with this worker's key; absent: [server] api_key_env"
    )


class Pool(Table):
    """``[prefill]`` or ``[decode]``. Spread = (max load - min load) / max load over the usable workers."""

    workers: Texts = ()
    policy: str = "cache_aware"
    cache_aware_threshold: Share = Field(0.3, description="up to this spread the longest prefix wins")
    load_balance_threshold: Share = Field(0.7, description="beyond this spread only load counts")
    cache_match_threshold: Share | None = Field(None, description="router's own knob: least matched share")
    balance_abs_threshold: Annotated[int, Field(ge=0)] | None = None
    balance_rel_threshold: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    worker: dict[str, WorkerTable] = Field(default_factory=dict)

    def settings_of(self, address: str) -> WorkerTable:
        """The worker's own table; defaults if it has none. ``address`` in any spelling of the node."""
        wanted = node_key(address)
        for written, table in self.worker.items():
            if node_key(written) == wanted:
                return table
        return WorkerTable()


class Health(Table):
    """``[health]``: how the router probes its workers."""

    interval_secs: Positive = 5.0
    timeout_secs: Positive = 2.0
    unhealthy_threshold: Annotated[int, Field(ge=1)] = 3
    healthy_threshold: Annotated[int, Field(ge=1)] = 2


class Slo(Table):
    """``[slo]``: latency targets, milliseconds; absent: no goodput shown."""

    ttft_p99_ms: Positive | None = None
    tpot_p99_ms: Positive | None = None


class LoadWeights(Table):
    """``[load]``: load = running + backlog + tokens/1000 + 10·kv_use, each with its weight.

    ``measure``, ``cache_benefit`` and ``affinity_guard`` are for the embedded router's choices.
    """

    measure: Measure = Field(
        "running_waiting",
        description="requests: sent by this router; running_waiting: others' too; tokens: the whole sum",
    )
    cache_benefit: NotNegative = Field(
        4.0, description="what a prompt that is cached as a whole is worth, in units of load"
    )
    affinity_guard: NotNegative = Field(
        16.0, description="a cached prefix does not count with so much more load than twice the others' mean"
    )
    running: NotNegative = 1.0
    backlog: NotNegative = 1.0
    per_1000_tokens: NotNegative = 1.0
    kv_use: NotNegative = 10.0


class Topology(Table):
    """``[topology]``: cost of sending KV from a prefill to a decode worker, in units of load."""

    same_host: NotNegative = 0.0
    same_rack: NotNegative = 1.0
    cross_rack: NotNegative = 6.0


class Level(Table):
    """Where a number turns to warning and to critical, in the unit of its name."""

    warn: Number | None = None
    crit: Number | None = None


class Levels(Table):
    """``[console.levels]``: ratios 0..1, milliseconds, or requests."""

    kv_use: Level = Level(warn=0.85, crit=0.95)
    hit_rate: Level = Level()  # low is bad: warn above crit
    backlog: Level = Level()
    ttft_p99_ms: Level = Level()
    tpot_p99_ms: Level = Level()
    queue_p99_ms: Level = Level()
    failure_rate: Level = Level(warn=0.01, crit=0.05)
    age_s: Level = Level(warn=10.0, crit=30.0)


class Columns(Table):
    """``[console.columns]``: columns of the two pool tables in order; empty: by width."""

    prefill: Texts = ()
    decode: Texts = ()


class Console(Table):
    """``[console]``: how pdtop polls and looks."""

    interval_secs: Positive = Field(2.0, description="/metrics of every worker and router")
    loads_interval_secs: Positive = Field(1.0, description="/v1/loads, where it exists")
    health_interval_secs: Positive = Field(5.0, description="/ready or /health")
    timeout_secs: Positive = Field(2.0, description="limit for one request")
    health_timeout_secs: Positive = Field(20.0, description="/health runs a request: it may take long")
    window_secs: Positive = Field(30.0, description="for rates, shares and percentiles")
    max_body_mib: Positive = 16.0
    read_only: bool = True
    drain_timeout_secs: Positive = Field(1800.0, description="then a drain asks what to do; it never aborts")
    confirm_share: Share = Field(
        0.5, description="a worker's name must be typed to take this part of a pool's capacity away"
    )
    theme: str | None = None
    mouse: bool = True
    levels: Levels = Levels()
    columns: Columns = Columns()
    connect_to: dict[str, str] = Field(
        default_factory=dict,
        description="dial another address for a worker, as curl --connect-to: for SSH port forwards",
    )
    keymap: dict[str, str] = Field(default_factory=dict, description="action id to keys, comma between keys")


class ClusterEntry(Table):
    """``[clusters.NAME]``: another cluster's own file, relative to this one."""

    config: str
    read_only: bool | None = None


class Config(Table):
    """The whole file with defaults filled in."""

    server: Server = Server()
    prefill: Pool = Pool()
    decode: Pool = Pool()
    health: Health = Health()
    slo: Slo = Slo()
    load: LoadWeights = LoadWeights()
    topology: Topology = Topology()
    console: Console = Console()
    keymap: dict[str, str] = Field(default_factory=dict, description="same as [console.keymap], which wins")
    clusters: dict[str, ClusterEntry] = Field(default_factory=dict)

    @property
    def key_bindings(self) -> dict[str, str]:
        """Action id to keys, from ``[keymap]`` and ``[console.keymap]``."""
        return {**self.keymap, **self.console.keymap}

    def pool(self, role: Literal["prefill", "decode"]) -> Pool:
        return self.prefill if role == "prefill" else self.decode

    def cluster_files(self, config_path: Path) -> dict[str, Path]:
        """Config file of each named cluster, relative paths taken from this file's folder."""
        folder = config_path.parent
        return {name: folder / Path(entry.config).expanduser() for name, entry in self.clusters.items()}


def node_key(address: str) -> str:
    """A worker address without scheme, user, path and rank, in lower case: to compare spellings.

    Good enough to see that two lines of one file mean the same node; what is dialled is decided elsewhere.
    """
    text = address.strip().lower()
    text = text.split("://", 1)[-1].split("/", 1)[0]
    before, at, after = text.rpartition("@")
    if at:
        text = before if after.isdigit() and ":" in before else after
    return text
