"""sglang-router 0.3.2: ``/workers`` and ``/readiness``; says little of its workers, some of it wrong."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect, Powers

DIALECT = Dialect(
    engine="sglang-router",
    loads_path="/get_loads",
    loads_every_s=60.0,  # each read makes the router call every worker
    powers=Powers(
        drain_by="removal",
        thresholds="none",  # cache_aware has no affinity in prefill/decode mode, so nothing to balance
        power_of_two_needs_two=True,
        update_method="PUT",
        update_zeroes_load=True,
    ),
    limits=(
        "its load leaves out streams that wait for their first token, so 0 does not mean idle",
        "with default settings it calls a dead idle worker healthy for 2 to 3 minutes",
        "its pool-size metric counts one prefill worker whatever there are",
        "in prefill/decode mode cache_aware picks at random (fixed after 0.3.2)",
        "it knows no weights: priority and cost are stored, not used",
        "a change to a worker sets the router's load of it to 0",
        "removed workers stay in its metrics",
        "loads read as unknown with SGLang 0.5.21 or later",
    ),
)
