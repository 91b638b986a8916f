"""smg 1.13.0: worker states with draining, loads from its own polls, PD histograms in its metrics."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect, Powers

DIALECT = Dialect(
    engine="smg",
    loads_path="/get_loads",
    loads_every_s=10.0,  # answered from the last polls, and those are 10 s apart
    powers=Powers(
        drain_by="removal",
        settle_s=5.0,  # drain_settle_secs, a fixed wait whatever still runs
        live_health=True,
        thresholds="restart",
        power_of_two_needs_two=True,
        update_method="PATCH",
        hidden_fields=frozenset({"health"}),
    ),
    limits=(
        "it knows no weights: priority and cost are stored, not used",
        "a worker can be ready and get nothing: overload protection leaves it out",
        "thresholds and policies change only at a restart",
    ),
)
