"""Any order of events: no unusable worker is picked, no request is lost, no room or counter leaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from pdtop.config.schema import Config
from pdtop.gateway.fleet import Dispatch, Fleet, NoWorker, Wanted
from pdtop.gateway.health import BREAKER_FAILURES
from pdtop.gateway.policies import NAMES
from pdtop.gateway.pool import Backend, Leg, Role, url_of

ADDRESSES = [f"10.0.0.{i}:30000" for i in range(1, 6)]
ROLES: tuple[Role, Role] = ("prefill", "decode")
PROMPTS = ["", "short", "a system prompt " * 40, "a system prompt " * 40 + "and more " * 20]

addresses = st.sampled_from(ADDRESSES)
roles = st.sampled_from(ROLES)
weights = st.sampled_from([0.0, 0.1, 1.0, 3.0])


@dataclass(eq=False)
class Running:
    """A request as the test keeps it."""

    dispatch: Dispatch
    tried: set[Backend]


class Router(RuleBasedStateMachine):
    """A fleet, and a plain account of what it should know."""

    requests: Bundle[Running] = Bundle("requests")

    @initialize(policies=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), seed=st.integers(0, 9))
    def start(self, policies: tuple[str, str], seed: int) -> None:
        self.now = 0.0
        self.file: dict[str, dict[str, Any]] = {
            role: {"workers": ADDRESSES[:2], "policy": policy, "worker": {}}
            for role, policy in zip(ROLES, policies, strict=True)
        }
        self.fleet = Fleet(self.config, seed)
        self.open: set[Running] = set()
        self.sent = self.finished = 0

    @property
    def config(self) -> Config:
        return Config.model_validate(self.file)

    # ---- the file

    @rule(role=roles, listed=st.lists(addresses, unique=True), policy=st.sampled_from(NAMES))
    def reload_workers(self, role: Role, listed: list[str], policy: str) -> None:
        self.file[role] |= {"workers": listed, "policy": policy}
        self.fleet.apply(self.config)
        assert [b.url for b in self.fleet.pool_of(role) if not b.leaving] == [url_of(a) for a in listed]

    @rule(role=roles, address=addresses, weight=weights, drain=st.booleans())
    def reload_worker(self, role: Role, address: str, weight: float, drain: bool) -> None:
        self.file[role]["worker"][address] = {"weight": weight, "drain": drain}
        self.fleet.apply(self.config)
        assert not self.fleet.transient

    # ---- the API

    @rule(role=roles, address=addresses)
    def add(self, role: Role, address: str) -> None:
        assert not self.fleet.add(role, f"http://{address}").leaving

    @rule(role=roles, address=addresses)
    def remove(self, role: Role, address: str) -> None:
        backend = self.fleet.pool_of(role).find(address)
        if backend is not None:
            self.fleet.remove(backend)
            assert backend.gone == (backend.inflight == 0)

    @rule(role=roles, address=addresses, weight=weights, drain=st.booleans())
    def patch(self, role: Role, address: str, weight: float, drain: bool) -> None:
        backend = self.fleet.pool_of(role).find(address)
        if backend is not None:
            self.fleet.weigh(backend, weight)
            backend.drain = drain

    # ---- workers

    @rule(role=roles, address=addresses, ok=st.booleans(), times=st.integers(1, 3))
    def probe(self, role: Role, address: str, ok: bool, times: int) -> None:
        backend = self.fleet.pool_of(role).find(address)
        for _ in range(times if backend is not None else 0):
            assert backend is not None
            backend.probes.record(ok)

    @rule(role=roles, address=st.sampled_from(ADDRESSES[:2]), since=st.sampled_from([0.0, 11.0]))
    def break_down(self, role: Role, address: str, since: float) -> None:
        backend = self.fleet.pool_of(role).find(address)
        for _ in range(BREAKER_FAILURES if backend is not None else 0):
            assert backend is not None
            backend.breaker.record(False, self.now)
        self.now += since

    @rule(seconds=st.sampled_from([0.1, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # ---- requests

    @rule(target=requests, prompt=st.sampled_from(PROMPTS))
    def send(self, prompt: str) -> Running | Any:
        return self._dispatch(prompt, set())

    def _dispatch(self, prompt: str, tried: set[Backend]) -> Running | Any:
        usable = {role: [b for b in self.fleet.pool_of(role) if b.usable(self.now)] for role in ROLES}
        rooms = set(self.fleet.rooms)
        try:
            dispatch = self.fleet.dispatch(Wanted(prompt, 100.0, 50.0), self.now, tried)
        except NoWorker:
            assert not usable["prefill"] or not usable["decode"]
            assert self.fleet.rooms == rooms
            return Running(_NOBODY, tried)
        for role, leg in zip(ROLES, dispatch.legs, strict=True):
            assert leg.backend in usable[role]
            assert leg.backend.weight > 0 and not leg.backend.draining
            untried = [b for b in usable[role] if b not in tried]
            assert leg.backend not in tried or not untried
        assert dispatch.room not in rooms
        running = Running(dispatch, tried)
        self.open.add(running)
        self.sent += 1
        return running

    @rule(running=requests, which=st.sampled_from([0, 1]), tokens=st.sampled_from([1.0, 1000.0]))
    def progress(self, running: Running, which: int, tokens: float) -> None:
        if running in self.open:
            leg = running.dispatch.legs[which]
            if not leg.ended:
                leg.progress(tokens)

    @rule(running=consumes(requests))
    def finish(self, running: Running) -> None:
        if running in self.open:
            for leg in running.dispatch.legs:
                self.fleet.end(leg, True, self.now)
            self._close(running)

    @rule(running=requests)
    def prefill_ends(self, running: Running) -> None:
        if running in self.open:
            self.fleet.end(running.dispatch.prefill, True, self.now)

    @rule(running=consumes(requests))
    def client_leaves(self, running: Running) -> None:
        if running in self.open:
            self._close(running)

    @rule(target=requests, running=consumes(requests), which=st.sampled_from([0, 1]))
    def fail_and_retry(self, running: Running, which: int) -> Running | Any:
        if running not in self.open:
            return running
        leg: Leg = running.dispatch.legs[which]
        self.fleet.end(leg, False, self.now)
        self._close(running)
        return self._dispatch("again", running.tried | {leg.backend})

    def _close(self, running: Running) -> None:
        self.fleet.close(running.dispatch, self.now)
        self.open.discard(running)
        self.finished += 1

    # ---- what always holds

    @invariant()
    def counts_are_those_of_the_requests_under_way(self) -> None:
        legs = [leg for r in self.open for leg in r.dispatch.legs if not leg.ended]
        for backend in self.fleet:
            own = [leg for leg in legs if leg.backend is backend]
            assert backend.inflight == len(own)
            assert backend.legs == set(own)
            assert abs(backend.tokens - sum(leg.tokens for leg in own)) < 1e-6
            assert backend.trials == sum(leg.trial for leg in own)
            assert not backend.gone
        assert self.fleet.rooms == {r.dispatch.room for r in self.open}
        assert self.sent == self.finished + len(self.open)

    @invariant()
    def whoever_has_work_is_still_there(self) -> None:
        present = set(self.fleet)
        for running in self.open:
            for leg in running.dispatch.legs:
                assert leg.ended or leg.backend in present

    @invariant()
    def addresses_are_there_once(self) -> None:
        for pool in self.fleet.pools:
            staying = [b.url for b in pool if not b.leaving]
            assert len(staying) == len(set(staying))

    @precondition(lambda self: not self.open)
    @rule()
    def an_idle_router_has_nothing_left(self) -> None:
        assert not self.fleet.rooms
        assert all(b.inflight == 0 and b.tokens == 0 and not b.legs and not b.leaving for b in self.fleet)

    def teardown(self) -> None:
        for running in tuple(getattr(self, "open", ())):
            self._close(running)
        if hasattr(self, "fleet"):
            self.an_idle_router_has_nothing_left()


def _nobody() -> Dispatch:
    fleet = Fleet(
        Config.model_validate({"prefill": {"workers": ADDRESSES[:1]}, "decode": {"workers": ADDRESSES[:1]}})
    )
    return fleet.dispatch(Wanted(), 0.0, set())


#: Stands in for a request that nobody took; it is never open.
_NOBODY = _nobody()

TestRouter = Router.TestCase
TestRouter.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
