"""pdtop's own router: metrics on its main port too, breaker and weight in its worker list."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect, Powers

DIALECT = Dialect(
    engine="pdtop",
    loads_path="/get_loads",
    loads_every_s=60.0,  # for its version; the list has the loads
    metrics_port=None,
    powers=Powers(drain_by="file", live_health=True, weights=True, reads_file=True, thresholds="live"),
    limits=("it takes changes from config.toml, not through its API",),
)
