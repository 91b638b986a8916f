"""smg 1.13.0: worker states with draining, loads from its own polls, PD histograms in its metrics."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect

DIALECT = Dialect(
    engine="smg",
    loads_path="/get_loads",
    loads_every_s=10.0,  # answered from the last polls, and those are 10 s apart
    update_methods=("PATCH",),
    limits=(
        "it knows no weights: priority and cost are stored, not used",
        "a worker can be ready and get nothing: overload protection leaves it out",
        "thresholds and policies change only at a restart",
    ),
)
