"""What can be tuned in config.toml: range, default, meaning, and what the present router does with it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pdtop.cluster.words import clean
from pdtop.config.edit import typed_edit
from pdtop.config.keys import join_key, look_up, split_key
from pdtop.config.layout import scan
from pdtop.config.load import Loaded, load_bytes
from pdtop.config.problems import Problem
from pdtop.config.render import toml_text
from pdtop.config.schema import POLICIES, Config
from pdtop.config.splice import CannotEdit
from pdtop.operations.model import Guard
from pdtop.routers.flags import Kind, effect, policies


@dataclass(frozen=True, slots=True)
class Field:
    """One key of config.toml as a tuning screen shows it.

    ``effect`` says what the present engine does with it: at once (``live``), with a restart, nothing
    (``none``: recorded, no effect here), read by pdtop itself (``pdtop``) or not known.
    """

    path: tuple[str, ...]
    group: str  # "prefill", "decode", "health", "slo", ...
    title: str
    meaning: str  # one plain sentence
    valid: str  # "0 to 1"
    default: str
    value: str  # as the file spells it, else the default
    written: bool  # the file says it, it is not only the default
    effect: Kind
    effect_words: str
    choices: tuple[str, ...] = ()
    step: float | None = None  # what one press of + or - means


@dataclass(frozen=True, slots=True)
class Knob:
    """What is to be said of a key whatever the file and the router are."""

    path: tuple[str, ...]
    title: str
    meaning: str
    valid: str
    step: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def default(self) -> str:
        value = look_up(Config(), self.path)
        return "not set" if value is None else str(value).removesuffix(".0")


_SHARE = "0 to 1"


def _pool(name: Literal["prefill", "decode"]) -> tuple[Knob, ...]:
    return (
        Knob(
            (name, "policy"),
            "Policy",
            f"How the router picks the {name} worker of a request.",
            "one of the router's policies",
            choices=tuple(p for p in POLICIES if name == "prefill" or p != "bucket"),
        ),
        Knob(
            (name, "cache_aware_threshold"),
            "Affinity up to spread",
            "Up to this spread of load the worker with the longest matching prefix wins; "
            "lower = leaves affinity earlier, spreads sooner.",
            _SHARE,
            0.05,
        ),
        Knob(
            (name, "load_balance_threshold"),
            "Only load beyond spread",
            "Beyond this spread of load only load counts; "
            "lower = a hot worker is relieved sooner, with fewer cache hits.",
            _SHARE,
            0.05,
        ),
        Knob(
            (name, "cache_match_threshold"),
            "Least matched share",
            "The router's own knob: a prompt sticks to a worker only if more than this share of it is cached "
            "there; higher = fewer prompts stick.",
            _SHARE,
            0.05,
        ),
        Knob(
            (name, "balance_abs_threshold"),
            "Balance: difference of load",
            "The router's own knob: affinity gives way when a worker has this many requests more; "
            "lower = spreads sooner.",
            "a whole number, 0 or more",
            8,
        ),
        Knob(
            (name, "balance_rel_threshold"),
            "Balance: ratio of load",
            "The router's own knob: affinity gives way when a worker's load is this many times as high; "
            "lower = spreads sooner.",
            "1 or more",
            0.05,
        ),
    )


KNOBS = (
    *_pool("prefill"),
    *_pool("decode"),
    Knob(
        ("health", "interval_secs"),
        "Probe every",
        "Seconds between two probes of a worker; lower = a dead worker is noticed sooner, for more probes.",
        "above 0",
        1.0,
    ),
    Knob(
        ("health", "timeout_secs"),
        "Probe timeout",
        "Seconds that a probe may take; lower = slow workers are taken for dead sooner.",
        "above 0",
        1.0,
    ),
    Knob(
        ("health", "unhealthy_threshold"),
        "Out after",
        "Failed probes in a row that take a worker out; lower = out sooner, with more false alarms.",
        "a whole number, 1 or more",
        1,
    ),
    Knob(
        ("health", "healthy_threshold"),
        "Back after",
        "Good probes in a row that bring a worker back; lower = back sooner, with more flapping.",
        "a whole number, 1 or more",
        1,
    ),
    Knob(
        ("slo", "ttft_p99_ms"),
        "TTFT target",
        "Time to the first token that counts as good, in milliseconds; lower = less goodput is shown.",
        "above 0",
        50.0,
    ),
    Knob(
        ("slo", "tpot_p99_ms"),
        "TPOT target",
        "Time per output token that counts as good, in milliseconds; lower = less goodput is shown.",
        "above 0",
        5.0,
    ),
)
_BY_PATH = {knob.path: knob for knob in KNOBS}


def knob(path: tuple[str, ...]) -> Knob | None:
    """What is known of a key that can be tuned; None for others."""
    return _BY_PATH.get(path)


def fields(loaded: Loaded | None, engine: str) -> tuple[Field, ...]:
    """Every key that can be tuned, with its present value. ``loaded`` None: there is no config file."""
    layout = scan(loaded.text) if loaded is not None and loaded.document else None
    found = []
    for one in KNOBS:
        written = layout.source(one.path) if layout is not None else None
        does = effect(engine, one.path)
        found.append(
            Field(
                path=one.path,
                group=one.path[0],
                title=one.title,
                meaning=one.meaning,
                valid=one.valid,
                default=one.default,
                value=one.default if written is None else written,
                written=written is not None,
                effect=does.kind,
                effect_words=does.words,
                choices=_choices(one, engine),
                step=one.step,
            )
        )
    return tuple(found)


def _choices(one: Knob, engine: str) -> tuple[str, ...]:
    """The policies that this router has, as far as that is known."""
    match one.path:
        case ("prefill" | "decode" as role, "policy"):
            return policies(engine, role) or one.choices
        case _:
            return one.choices


# What was typed.


def check(path: tuple[str, ...], spelling: str, config: Config | None = None) -> Guard | None:
    """What is wrong with a typed value as such; None if the file may say it."""
    try:
        one = typed_edit("set", path, spelled(path, spelling))
    except CannotEdit as error:
        wrong = Guard("range", clean(f"{join_key(path)}: {error}"), clean(_hint(path, _meant(spelling))))
        tried = load_bytes(Path("config.toml"), f'{join_key(path)} = "x"'.encode())
        unknown = (replace(p, value=None) for p in tried.problems if p.kind == "unknown_key")
        return next(map(guard_of, unknown), wrong)
    lines = [f"{one.key} = {one.spelling}"]
    engine = config.server.engine if config is not None else None
    if engine is not None and path[0] != "server":
        lines.append(f'server.engine = "{engine}"')
    loaded = load_bytes(Path("config.toml"), "\n".join(lines).encode())
    return next((guard_of(p) for p in loaded.problems if forbids(p)), None)


#: Warnings of a file that a change of ours must not bring in.
_KINDS = ("unknown_key", "secret_in_file")


def forbids(problem: Problem) -> bool:
    """Whether a problem that a change would bring in refuses it."""
    return problem.severity == "error" or problem.kind in _KINDS


def guard_of(problem: Problem) -> Guard:
    """A problem of the file as a guard."""
    what = problem.key + (f" = {problem.value}" if problem.value is not None else "")
    unknown = problem.kind == "unknown_key"
    hint = _hint(split_key(problem.key) if problem.key else (), problem.suggestion, problem.fix)
    return Guard(
        problem.kind if problem.kind in _KINDS else "range" if problem.severity == "error" else "config",
        clean(f"{what}: {problem.rule}" if what else problem.rule),
        clean(hint) or ("`pdtop config show` lists all keys" if unknown else ""),
        blocks=forbids(problem),
    )


def spelled(path: tuple[str, ...], typed: str) -> str:
    """What was typed as TOML: a word for a key that holds text needs no quotes."""
    text = typed.strip()
    if text and not _is_toml(text) and _takes_text(path):
        return toml_text(text)
    return text


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return False
    return True


def _takes_text(path: tuple[str, ...]) -> bool:
    tried = load_bytes(Path("config.toml"), f'{join_key(path)} = "x"'.encode())
    return not any(p.kind.endswith("_type") or p.kind == "unknown_key" for p in tried.problems)


def _hint(path: tuple[str, ...], suggestion: str | None, fix: str = "") -> str:
    known = knob(path)
    parts = [f"valid: {known.valid}, default {known.default}"] if known is not None else []
    parts += [f"did you mean {suggestion}?"] if suggestion is not None else []
    return "; ".join([*parts, fix] if fix else parts)


_COMMA = re.compile(r"\s*(\d+),(\d+)\s*\Z")
_PERCENT = re.compile(r"\s*(\d{1,3}(?:\.\d+)?)\s*%\s*\Z")


def _meant(typed: str) -> str | None:
    """The number that was meant by ``0,4`` or ``30 %``."""
    if found := _COMMA.match(typed):
        return f"{found[1]}.{found[2]}"
    if found := _PERCENT.match(typed):
        return f"{float(found[1]) / 100:.2f}"
    return None
