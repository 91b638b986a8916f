"""Moments of operating: what the gate shows and the log says while something is under way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pdtop.cluster.model import Drift, Snapshot
from pdtop.config.changes import Change
from pdtop.config.load import load_bytes
from pdtop.operations.fields import fields
from pdtop.operations.model import (
    Choice,
    Comparison,
    LockHolder,
    LogEntry,
    Operation,
    Outcome,
    Phase,
    Readmission,
    RestartPlan,
    RouterOutcome,
    View,
)
from pdtop.routers.control import Call
from tests.tui import fakes
from tests.tui.fake_gate import STALLED, drain_plan, draining, operation

CONFIG = b"""\
[prefill]
workers = ["10.0.1.11:30001"]
policy = "cache_aware"
cache_aware_threshold = 0.3
[decode]
workers = ["10.0.2.21:30001"]
policy = "power_of_two"
"""

FIELDS = fields(load_bytes(Path("config.toml"), CONFIG), "smg")

_CALL = Call("router-0", "DELETE", "/workers/7f3a", 202, "queued", 0.02)

PARTLY = operation(
    id="partly", phase=Phase.ENDED, outcome=Outcome.PARTLY_DONE, words="router-1 does not answer",
    next_step="d drains again", seconds=12.0,
    routers=(
        RouterOutcome("router-0", Outcome.DONE, "no new work reaches it", calls=(_CALL,)),
        RouterOutcome("router-1", Outcome.TIMED_OUT, "no answer within 5 s", "see whether it is alive"),
    ),
)  # fmt: skip

DONE = operation(
    id="done", phase=Phase.ENDED, outcome=Outcome.DONE, words="drained in 4m10s: safe to stop",
    next_step="U brings it back", seconds=250.0,
)  # fmt: skip

DEADLINE = operation(
    id="deadline", phase=Phase.DEADLINE, choices=tuple(Choice), words="13 left after 30m",
    next_step="⏎ decides",
)  # fmt: skip

COMPARISON = Comparison(
    "prefill.cache_aware_threshold 0.3 → 0.35", fakes.NOW, 300, 100,
    (
        ("share 10.0.1.11", "62 %", "48 %", "lower"),
        ("hit rate", "35 %", "33 %", "no clear difference"),
        ("TTFT p99", "812ms", "640ms", "lower"),
        ("TPOT p99", "43ms", "44ms", "no clear difference"),
        ("backlog", "14", "9", "no clear difference"),
    ),
    "the busiest worker takes less, and TTFT fell; for the rest there is no clear difference",
)  # fmt: skip

RESTART = RestartPlan(
    (Change("prefill.policy", "cache_aware", "random"),),
    ("python", "-m", "smg.launch_router", "--pd-disaggregation", "--prefill", "http://10.0.1.11:30001",
     "8998"),
    ("what is remembered of prefixes and loads", "health settings of single workers"),
    "about 20 s without a router: clients see refused connections",
    ("power_of_two refuses to start with fewer than 2 workers in a pool",),
    ("systemctl", "restart", "smg"),
)  # fmt: skip

ENTRIES = (
    LogEntry("a2", fakes.NOW - 30, "anna", "jump-1", "10.1.0.4", "prod-a", "drain", STALLED,
             outcome="partly done", words="router-1 does not answer", source="console", seconds=1.2,
             calls=(_CALL,)),
    LogEntry("a1", fakes.NOW - 90, "anna", "jump-1", "10.1.0.4", "prod-a", "set",
             "prefill.cache_aware_threshold", "0.3", "0.35", "done", source="console", seconds=0.4,
             undoable=True),
    LogEntry("a0", fakes.NOW - 90_000, "root", "ci-3", "", "prod-a", "weight", "10.0.2.21:30001", "1",
             "0.5", "failed", "401: the router refuses the key", "command line", 0.1, undone_by="a1"),
)  # fmt: skip


def busy() -> View:
    """Armed, with a drain, one at its deadline, one partly done, a comparison and a restart plan."""
    back = Readmission(STALLED, fakes.NOW, (("ok", "healthy at router-0"), ("waiting", "first request")))
    return View(
        read_only=False, armed_by="--write", operations=(DEADLINE, PARTLY), drains=(draining(),),
        restart=RESTART, comparison=COMPARISON, undoable="drain of 10.0.2.22:30001", readmissions=(back,),
    )  # fmt: skip


def hostile() -> View:
    """Markup, control characters and endless text in all that comes from outside."""
    nasty = fakes.HOSTILE + "\x1b[31m" + "日本" + "a" * 300
    plan = drain_plan(title=nasty)
    bad: Operation = replace(PARTLY, plan=plan, words=nasty, next_step=nasty)
    return replace(
        busy(),
        operations=(bad, replace(DEADLINE, plan=plan)),
        drains=(draining(by=nasty, note=nasty, still_on=(nasty,)),),
        holder=LockHolder(nasty, nasty, 1, fakes.NOW),
        comparison=replace(COMPARISON, title=nasty, rows=((nasty, nasty, nasty, nasty),), words=nasty),
        restart=replace(RESTART, command=(nasty,), lost=(nasty,), gap=nasty, warnings=(nasty,)),
        notices=(nasty,),
    )


def drifted() -> Snapshot:
    """The moment of the sketch with differences between file and router."""
    found = (
        Drift(STALLED, "weight", "weight: config says 0.5, router-0 says 1", "router-0", "pdtop apply"),
        Drift("10.0.1.14:30001", "not_in_router", "in config, not in router-0", "router-0",
              "pdtop apply adds it; or take it out of config.toml"),
    )  # fmt: skip
    return replace(fakes.moment(), drift=found)
