"""pdtop's own router: metrics on its main port, breaker and weight in its worker list."""

from __future__ import annotations

from pdtop.routers.dialect import Dialect

DIALECT = Dialect(engine="pdtop", metrics_port=None, update_methods=("PATCH",))
