"""From config.toml to how an engine is started: its flags, its keys, its list of workers; pure.

smg gets its workers from a file that it watches (its own hot reload; policies per pool hold there, too),
sglang-router from its command line. Workers with a key of their own are added through the API, which alone
can carry one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pdtop.cluster.desired import Desired, desired
from pdtop.config.changes import config_changes
from pdtop.config.keys import split_key
from pdtop.config.masking import is_secret_name
from pdtop.config.schema import Config, Pool
from pdtop.routers.flags import (
    POOLS,
    PoolName,
    command_line,
    effect,
    masked,
    policies,
    policy_words,
    refuses_to_start,
    translations,
)
from pdtop.supervisor.engines import CannotRun, Engine

LOOPBACK = "127.0.0.1"
_FEWEST = 2  # workers that power_of_two wants on the command line
#: smg reads its file when it changes; this is the net beneath.
_REREAD_S = 5
#: What the supervisor says itself, and where it takes it from.
_OWN_FLAGS: Mapping[str, str] = {
    **dict.fromkeys(("--host", "--port"), "[server] host and port"),
    **dict.fromkeys(("--prometheus-host", "--prometheus-port"), "[server] metrics_url"),
    **dict.fromkeys(("--prefill", "--decode", "--worker-urls"), "[prefill] and [decode] workers"),
    **dict.fromkeys(("--api-key", "--control-plane-api-keys"), "$PDTOP_API_KEY and $PDTOP_ADMIN_KEY"),
    **dict.fromkeys(("--discovery-provider", "--discovery-file", "--service-discovery"), "its own"),
    **dict.fromkeys(("--shutdown-grace-period-secs", "--pd-disaggregation"), "its own"),
}


_OTHER_ENGINE = ("server.engine", "server.engine_python")
_ADDRESSES = ("server.host", "server.port")  # held by pdtop, which moves them without a restart


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run of the engine listens, for the hand-over alone."""

    port: int
    metrics_port: int
    host: str = LOOPBACK


@dataclass(frozen=True, slots=True)
class Launch:
    """How an engine is started, but for where it listens and which workers it has. ``keys``: secret flags."""

    engine: Engine
    python: str
    flags: tuple[str, ...]
    keys: tuple[str, ...] = field(repr=False)

    def same_run(self, other: Launch) -> bool:
        """No restart lies between the two: smg takes health settings while it runs."""
        return (self.engine, self.python, self._lasting(), self.keys) == (
            other.engine,
            other.python,
            other._lasting(),
            other.keys,
        )

    def _lasting(self) -> tuple[str, ...]:
        live = "--health-" if self.engine.reads_manifest else "--none"
        return tuple(word for flag in _each(self.flags) if not flag[0].startswith(live) for word in flag)

    def shown(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The command line for people; of keys only that there are some."""
        keys = (word for flag in _each(self.keys) for word in (flag[0], "…"))
        return masked((self.python, "-m", self.engine.module, *flags, *keys))


def launch(
    config: Config, engine: Engine, python: str, further: Sequence[str], environ: Mapping[str, str]
) -> Launch:
    """``further``: flags of the engine that config.toml has no key for. Raises :class:`CannotRun`."""
    for name in (flag[0].partition("=")[0] for flag in _each(further)):
        if name in _OWN_FLAGS:
            raise CannotRun(f"{name} is not to be given: pdtop makes it from {_OWN_FLAGS[name]}")
    words = command_line(_with_workers(config, {}), engine.name, base=("engine", *further))[1:]
    flags = tuple(word for flag in _each(words) if flag[0] not in _OWN_FLAGS for word in flag)
    return Launch(engine, python, flags, _keys(config, environ))


def argv(
    config: Config, made: Launch, place: Place, *, manifest: str | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """The flags of one run. ``manifest``: the file with smg's workers, None for sglang-router."""
    # Longer than any request: a former run lets all its streams end. The stop of pdtop has its own limit.
    grace = max(1, round(config.server.request_timeout_secs)) + 1
    words = ["--host", place.host, "--port", str(place.port), "--pd-disaggregation"]
    words += ["--prometheus-host", place.host, "--prometheus-port", str(place.metrics_port)]
    words += ["--shutdown-grace-period-secs", str(grace)]
    if manifest is not None:
        words += ["--discovery-provider", "file", "--discovery-file", manifest]
        words += ["--discovery-check-interval-secs", str(_REREAD_S), "--no-remove-unhealthy-workers"]
    else:
        for entry in listed_at_start(config, environ):
            words += [f"--{entry.role.value}", entry.address.base_url]
            words += [str(entry.bootstrap_port)] if entry.bootstrap_port is not None else []
    return (*words, *made.flags)


def manifest(config: Config, environ: Mapping[str, str]) -> dict[str, object]:
    """smg's list of workers, without the drained ones and those that have a key of their own."""
    workers: list[dict[str, object]] = []
    for entry in _without_own_key(config, environ):
        if not entry.table.drain:
            worker: dict[str, object] = {"url": entry.address.base_url, "worker_type": entry.role.value}
            if entry.bootstrap_port is not None:
                worker["bootstrap_port"] = entry.bootstrap_port
            workers.append(worker)
    return {"version": 1, "workers": workers}


def listed_at_start(config: Config, environ: Mapping[str, str]) -> tuple[Desired, ...]:
    """The workers on sglang-router's command line.

    With ``power_of_two`` it does not start with fewer than two: drained ones make them up, and are taken
    out again before any request can reach the new process.
    """
    chosen: list[Desired] = []
    for role in POOLS:
        entries = [one for one in _without_own_key(config, environ) if one.role.value == role]
        serving = [one for one in entries if not one.table.drain]
        if config.pool(role).policy == "power_of_two" and len(serving) < _FEWEST:
            serving += [one for one in entries if one.table.drain][: _FEWEST - len(serving)]
        chosen += serving
    return tuple(chosen)


def refusal(config: Config, engine: Engine, environ: Mapping[str, str]) -> str | None:
    """Why this engine would not start with these settings; None if it would."""
    if not engine.reads_manifest:
        listed = listed_at_start(config, environ)
        keys = {role: tuple(one.key for one in listed if one.role.value == role) for role in POOLS}
        return refuses_to_start(_with_workers(config, keys), engine.name)
    for role in POOLS:  # its list is read after the start: no pool is too small for it
        policy, known = config.pool(role).policy, policies(engine.name, role)
        if known and policy not in known:
            return policy_words(engine.name, policy, role)
    return None


def not_honoured(config: Config, engine: Engine) -> tuple[str, ...]:
    """What the engine does otherwise than the file says, or not at all, in words."""
    words = [one for one in translations(config, engine.name) if not one.startswith("left out because")]
    for role, key in _written(config):
        found = effect(engine.name, (role, key))
        if found.kind == "none" and not any(one.startswith(f"[{role}] {key}") for one in words):
            words.append(f"[{role}] {key}: {found.words}")
    return (*words, *idle_pools(config))


def idle_pools(config: Config) -> tuple[str, ...]:
    """Pools that the file leaves without anybody who takes requests, in words; it is followed anyway."""
    words = []
    for role in POOLS:
        pool = config.pool(role)
        if all(pool.settings_of(worker).drain for worker in pool.workers):
            why = "every worker is drained" if pool.workers else "there is no worker"
            words.append(f"[{role}] {why}: requests are refused")
    return tuple(words)


def secrets(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of all variables that the file names as those of keys."""
    tables = [*config.prefill.worker.values(), *config.decode.worker.values()]
    names = {config.server.api_key_env, config.server.admin_key_env}
    names |= {table.api_key_env for table in tables if table.api_key_env is not None}
    return tuple(environ[name] for name in sorted(names) if environ.get(name))


def warnings(config: Config, environ: Mapping[str, str], further: Sequence[str]) -> tuple[str, ...]:
    """What an operator should know at the start."""
    server = config.server
    found: list[str] = []
    exposed = server.host not in (LOOPBACK, "::1", "localhost")
    if exposed and not _keys(config, environ):
        found.append(
            f"no key is set: whoever reaches {server.host}:{server.port} can add and remove workers; "
            f"set ${server.api_key_env} or ${server.admin_key_env}"
        )
    secret = [
        flag[0]
        for flag in _each(further)
        if is_secret_name(flag[0].partition("=")[0].strip("-").replace("-", "_"))
    ]
    if secret:
        found.append(f"every user of this machine sees the command line (ps), and so {', '.join(secret)}")
    return tuple(found)


def restart_reasons(launched: Launch, started_with: Config, made: Launch, config: Config) -> tuple[str, ...]:
    """Why a run has to be replaced, in words; empty: it need not be, or a flag without effect differs."""
    if launched.same_run(made):
        return ()
    words = [
        change.text
        for change in config_changes(started_with, config)
        if change.key in _OTHER_ENGINE
        or (
            change.key not in _ADDRESSES and effect(made.engine.name, split_key(change.key)).kind == "restart"
        )
    ]
    return (*words, "another key") if launched.keys != made.keys else tuple(words)


def key_of_its_own(config: Config, entry: Desired, environ: Mapping[str, str]) -> str | None:
    """The key of a worker that wants another one than the router presents to its workers."""
    own = environ.get(entry.table.api_key_env or "") or None
    return own if own != (environ.get(config.server.api_key_env) or None) else None


def _without_own_key(config: Config, environ: Mapping[str, str]) -> Iterator[Desired]:
    return (one for one in desired(config).values() if key_of_its_own(config, one, environ) is None)


def _keys(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """As the embedded router means them: one for requests and, if there is another, that for changes."""
    data = environ.get(config.server.api_key_env) or None
    admin = environ.get(config.server.admin_key_env) or None
    words: tuple[str, ...] = ("--api-key", data) if data is not None else ()
    if admin is not None and admin != data:
        words += ("--control-plane-api-keys", f"pdtop:pdtop:admin:{admin}")
    return words


def _with_workers(config: Config, workers: Mapping[PoolName, tuple[str, ...]]) -> Config:
    """The same with other workers, none of them drained."""

    def pool(role: PoolName) -> Pool:
        table = config.pool(role)
        serving = {name: one.model_copy(update={"drain": False}) for name, one in table.worker.items()}
        return table.model_copy(update={"workers": workers.get(role, ()), "worker": serving})

    return config.model_copy(update={role: pool(role) for role in POOLS})


def _written(config: Config) -> Iterator[tuple[PoolName, str]]:
    """Keys of the pools that stand in the file."""
    for role in POOLS:
        for key in sorted(config.pool(role).model_fields_set & set(Pool.model_fields)):
            if key not in ("workers", "worker", "policy"):
                yield role, key


def _each(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Flags, each with its values."""
    flag: tuple[str, ...] = ()
    for word in words:
        if word.startswith("--") and flag:
            yield flag
            flag = ()
        flag += (word,)
    if flag:
        yield flag
