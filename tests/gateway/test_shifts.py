"""Tuning while it runs: what a change of config.toml does to a cluster under seeded load, in virtual time.

The router's own choices (a :class:`Fleet`) over the simulator's engines, joined without HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pdtop.config.schema import Config
from pdtop.gateway.fleet import Dispatch, Fleet, Wanted
from pdtop.simulator.engine import Site
from pdtop.simulator.scenarios import Scenario, plan
from pdtop.simulator.spec import WorkerSpec
from pdtop.simulator.traffic import Arrival, arrivals
from pdtop.simulator.virtual import VirtualCluster, request_of


class Bench:
    """A scenario with a router in front, and how its requests were spread."""

    def __init__(self, scenario: Scenario, **tables: dict[str, Any]) -> None:
        self.wanted = plan(scenario, 3, 4, None, seed=0)
        self.cluster = VirtualCluster.make([*self.wanted.prefill, *self.wanted.decode])
        self.by_url = {
            f"http://{role}-{i}:1": worker
            for role, pool in (("p", self.cluster.prefill), ("d", self.cluster.decode))
            for i, worker in enumerate(pool)
        }
        self.file: dict[str, Any] = {
            "prefill": {"workers": self._names("p"), "policy": self.wanted.prefill_policy},
            "decode": {"workers": self._names("d"), "policy": self.wanted.decode_policy},
            "load": {"affinity_guard": self.wanted.affinity_guard},
        }
        self.file["prefill"] |= {
            "cache_aware_threshold": self.wanted.cache_aware_threshold,
            "load_balance_threshold": self.wanted.load_balance_threshold,
            "worker": self._sites("p"),
        }
        self.file["decode"]["worker"] = self._sites("d")
        self.fleet = Fleet(Config.model_validate(self.file), seed=0)
        self.change(**tables)
        self.open: dict[str, Dispatch] = {}
        self.sent: list[Dispatch] = []
        self.arrivals: Iterator[Arrival] = arrivals(self.wanted.traffic, 0)
        self._count = 0

    def _names(self, role: str) -> list[str]:
        return [url.removeprefix("http://") for url in self.by_url if url.startswith(f"http://{role}-")]

    def _sites(self, role: str) -> dict[str, dict[str, str]]:
        sites = {}
        for name in self._names(role):
            site = site_of(self.by_url[f"http://{name}"].spec)
            sites[name] = {"host": site.host, "rack": site.rack}
        return sites

    def change(self, **tables: dict[str, Any]) -> None:
        """What an editor does to the file, in force from the next request on."""
        for name, values in tables.items():
            self.file[name] = {**self.file.get(name, {}), **values}
        self.fleet.apply(Config.model_validate(self.file))

    def run(self, seconds: float) -> list[Dispatch]:
        """Go on under load; what was sent meanwhile."""
        end, before = self.cluster.now + seconds, len(self.sent)
        while (arrival := next(self.arrivals)).at <= end:
            self._until(arrival.at)
            self._send(arrival)
        self._until(end)
        return self.sent[before:]

    def _until(self, at: float) -> None:
        self.cluster.run_until(at)
        while self.cluster.results:
            dispatch = self.open.pop(self.cluster.results.popleft().request.rid)
            self.fleet.close(dispatch, at)
        for rid, dispatch in self.open.items():
            if self.cluster._open[rid].first is not None:  # prefill has answered when its KV was sent
                self.fleet.end(dispatch.prefill, True, at)

    def _send(self, arrival: Arrival) -> None:
        self._count += 1
        wanted = Wanted(arrival.prompt, len(arrival.prompt) / 4, arrival.output_tokens)
        dispatch = self.fleet.dispatch(wanted, arrival.at, set())
        rid = f"r{self._count}"
        self.open[rid] = dispatch
        self.sent.append(dispatch)
        prefill, decode = (self.by_url[leg.backend.url] for leg in dispatch.legs)
        self.cluster.submit(request_of(arrival, rid, self._count), prefill, decode)

    @property
    def waiting(self) -> list[int]:
        return sorted(worker.load for worker in self.cluster.prefill)


def site_of(spec: WorkerSpec) -> Site:
    return spec.prefill.site if spec.role == "prefill" else spec.decode.site


def shares(sent: list[Dispatch], role: str) -> dict[str, float]:
    legs = [d.prefill if role == "prefill" else d.decode for d in sent]
    counts = Counter(leg.backend.url for leg in legs)
    return {url: n / len(sent) for url, n in counts.items()}


def cross_rack(sent: list[Dispatch]) -> float:
    return sum(d.pair.transfer_cost == 6.0 for d in sent) / len(sent)


def test_lower_thresholds_cool_the_hot_prefill_worker() -> None:
    bench = Bench("hot-prefix")
    before = shares(bench.run(20.0), "prefill")
    hot = max(before, key=lambda url: before[url])
    assert before[hot] > 0.6
    _, middle, most = bench.waiting
    assert most > 20 + middle
    bench.change(prefill={"cache_aware_threshold": 0.3, "load_balance_threshold": 0.7})
    after = shares(bench.run(30.0), "prefill")
    assert after[hot] < 0.35
    least, _, most = bench.waiting
    assert most - least < 10


def test_the_lower_affinity_threshold_alone_cools_it_within_30_s() -> None:
    bench = Bench("hot-prefix")
    before = shares(bench.run(20.0), "prefill")
    hot = max(before, key=lambda url: before[url])
    *_, waiting = bench.waiting
    bench.change(prefill={"cache_aware_threshold": 0.3})
    after = shares(bench.run(30.0), "prefill")
    assert before[hot] > 0.6
    assert after[hot] < 0.5 * before[hot]
    *_, most = bench.waiting
    assert most < 0.7 * waiting


def test_a_slow_decode_worker_with_half_the_weight_gets_half_the_share_within_30_s() -> None:
    bench = Bench("slow-decode")
    assert 0.23 < shares(bench.run(20.0), "decode")["http://d-3:1"] < 0.27
    bench.change(decode={"worker": {**bench.file["decode"]["worker"], "d-3:1": {"weight": 0.5}}})
    assert abs(shares(bench.run(30.0), "decode")["http://d-3:1"] - 0.5 / 3.5) < 0.02


def test_half_the_weight_is_half_the_share() -> None:
    bench = Bench("steady", decode={"policy": "round_robin"})
    even = shares(bench.run(30.0), "decode")
    assert all(0.23 < share < 0.27 for share in even.values())
    bench.change(decode={"worker": {**bench.file["decode"]["worker"], "d-3:1": {"weight": 0.5}}})
    less = shares(bench.run(30.0), "decode")
    assert abs(less["http://d-3:1"] - 0.5 / 3.5) < 0.02


def test_a_slow_decode_worker_with_less_weight_gets_less() -> None:
    bench = Bench("slow-decode", decode={"policy": "power_of_two"})
    before = shares(bench.run(30.0), "decode")["http://d-3:1"]
    bench.change(decode={"worker": {**bench.file["decode"]["worker"], "d-3:1": {"weight": 0.3}}})
    after = shares(bench.run(30.0), "decode")["http://d-3:1"]
    assert after < 0.65 * before


def test_pairs_by_topology_make_cross_rack_transfers_vanish() -> None:
    bench = Bench("steady")
    assert cross_rack(bench.run(30.0)) > 0.35
    bench.change(decode={"policy": "pair_aware"})
    assert cross_rack(bench.run(30.0)) < 0.1


def test_drained_workers_get_nothing_and_finish_what_they_have() -> None:
    bench = Bench("steady")
    bench.run(10.0)
    name = "d-0:1"
    drained = bench.fleet.decode.find(name)
    assert drained is not None and drained.inflight > 0
    bench.change(decode={"worker": {**bench.file["decode"]["worker"], name: {"drain": True}}})
    assert "http://d-0:1" not in shares(bench.run(30.0), "decode")
    assert drained.inflight == 0
    assert drained.failed == 0


def test_what_remains_after_the_load_is_nothing() -> None:
    bench = Bench("burst")
    bench.run(30.0)
    bench.cluster.drain()
    bench._until(bench.cluster.now)
    assert not bench.open
    assert not bench.fleet.rooms
    assert all(b.inflight == 0 and not b.legs for b in bench.fleet)
