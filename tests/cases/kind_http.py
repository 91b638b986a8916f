"""Cases of kind http: stub servers on loopback, the real poller on a clock of its own, one look per check.

A story of twenty seconds takes as long as its answers take to send: its loop's clock jumps to the next timer.
``open_max`` and ``retries_per_poll`` are counted by path: the console may ask two different things at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pdtop.cluster.address import Address, AddressError, chat_url
from pdtop.cluster.board import Board, Setting
from pdtop.cluster.http import Dialler
from pdtop.cluster.period import Span
from pdtop.cluster.poller import Poller
from pdtop.cluster.readings import Answer
from pdtop.cluster.request_check import Verdict, check
from pdtop.cluster.targets import RouterTarget, Targets, from_config, from_router
from pdtop.config.schema import Config
from pdtop.routers.change import Changed, Result, change_worker
from pdtop.routers.dialect import read_workers
from tests.cases.http_console import LONGEST_STORY_S, WINDOW_S, Console
from tests.cases.http_stub import WORKER_ID, WORKERS, CaseServer, Table, serve
from tests.cases.look import Look
from tests.cases.values import Report, equal
from tests.cluster.stub_server import Reply, Request, StubServer, always
from tests.cluster.virtual_time import Place, longest_step_s
from tests.cluster.virtual_time import run as run_virtually

MODEL = "demo-model"
UI_LIMIT_S = 0.1  # the screen has another thread: it waits at most for one step of this one
SLACK_S = 0.2  # between a moment of the story and the sample that belongs to it
ROUTERS_GUESS = 29000  # where the product looks for a router's metrics if nobody says where they are


def run(case: Mapping[str, object], folder: Path, workplace: Path) -> None:
    """Play one case; raises AssertionError with everything that differs."""
    given, expect = _table(case["input"]), _table(case["expect"])
    report = Report()
    if given.get("action") == "call":
        for number, call in enumerate(map(_table, _list(expect.get("calls"))), 1):
            _call(f"call {number}", call, report)
    else:
        for setting in _settings(given):
            story = Story(given, expect, folder, workplace, setting, report)
            story.play()
    if "limits" in expect:
        report.fail("limits", "belong to kind metrics")
    report.raise_failures()


def _settings(given: Table) -> Iterator[Table]:
    """The settings of each run; one run without a name if the case names none."""
    runs = _list(given.get("runs"))
    for one in map(_table, runs or [{}]):
        yield {"key": given.get("key"), **one}


# Actions that are pure functions


def _call(where: str, call: Table, report: Report) -> None:
    text = str(call["in"])
    try:
        if call["fn"] == "chat_url":
            chat = chat_url(text)
            message = chat.warning
            found: dict[str, object] = {"url": chat.url, "warn": bool(chat.warning)}
        else:
            address = Address.parse(text)
            message = address.warning
            other = str(call.get("same_node_as", text))
            found = {
                "metrics_url": address.metrics_url,
                "key": address.key,
                "same_node_as": other if address.same_node_as(Address.parse(other)) else None,
                "rank": address.rank,
                "basic_auth": address.authorization is not None,
                "shown_as": address.shown_as,
                "failed_worker": False,  # an address alone is no failure, whatever it speaks
            }
        found["refused"] = False
    except AddressError as error:
        found, message = {"refused": True}, str(error)
    for name, wanted in call.items():
        if name == "mentions":
            report.mentions(f"{where} mentions", _list(wanted), message)
        elif name not in ("fn", "in"):
            if name not in found:
                report.fail(f"{where} {name}", f"{text!r} was refused: {message}")
            else:
                report.equal(f"{where} {name}", wanted, found[name])


# Actions with servers


@dataclass(slots=True)
class Story:
    """One run of a case under one setting."""

    given: Table
    expect: Table
    folder: Path
    workplace: Path
    setting: Table
    report: Report
    servers: dict[str, CaseServer] = field(default_factory=dict)
    dialled: list[Place] = field(default_factory=list)
    elsewhere: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    began: float = 0.0

    @property
    def name(self) -> str:
        return str(self.setting.get("name", ""))

    @property
    def checks(self) -> list[tuple[str, Table]]:
        numbered = enumerate(map(_table, _list(self.expect.get("checks"))), 1)
        mine = [(number, one) for number, one in numbered if one.get("run", self.name) == self.name]
        return [(f"{self.name} check {number}".strip(), one) for number, one in mine]

    @property
    def polls(self) -> int:
        """How many polls the story has."""
        named = [int(_number(one["after_poll"])) for _, one in self.checks if "after_poll" in one]
        for server in map(_table, _list(self.given.get("servers"))):
            for route in map(_table, _list(server.get("routes"))):
                named += [int(_number(poll)) for poll in _list(route.get("polls"))]
        if named:
            return max(named)
        if "run_for_s" in self.given:
            return max(int(_number(self.given["run_for_s"]) // self.interval_s), 1)
        return 1

    @property
    def interval_s(self) -> float:
        return _number(self.given.get("poll_interval_s", Config().console.interval_secs))

    def play(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _table(self.setting.get("env", {})).items():
                patch.setenv(name, "http://127.0.0.1:9" if value is True else str(value))
            run_virtually(self._main(), dial=self._dial)
        for error in self.errors:
            self.report.fail(self.name or "run", error)

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _, context: self.errors.append(str(context.get("exception", context)))
        )
        self.began = loop.time()
        tables = [_table(server) for server in _list(self.given.get("servers"))]
        by_request = self.given["action"] != "poll"
        async with AsyncExitStack() as stack:
            catch_all = StubServer(always(Reply(raw=b"")))
            self._other = await stack.enter_async_context(catch_all)
            self.servers = await serve(stack, tables, self.folder, by_request=by_request)
            self.report.ports = {name: server.served.port for name, server in self.servers.items()}
            self._places = {k: v for server in self.servers.values() for k, v in server.places().items()}
            await {
                "poll": self._poll,
                "request_check": self._request_check,
                "change_worker": self._change_worker,
            }[str(self.given["action"])]()
        self.elsewhere = catch_all.requests

    _other: StubServer = field(init=False)
    _places: dict[Place, Place] = field(init=False)

    def _dial(self, host: str, port: int) -> Place:
        self.dialled.append((host, port))
        place = self._places.get((host.lower(), port))
        if place is not None:
            return place
        if host in {known for known, _ in self._places}:
            raise ConnectionRefusedError(111, "Connection refused")
        return "127.0.0.1", self._other.port

    # What the product is told

    def targets(self) -> Targets:
        wanted = self.setting.get("servers")
        servers = [one for one in self.servers.values() if wanted is None or one.name in _list(wanted)]
        routers = self._routers(servers)
        raw: dict[str, Any] = {"console": {"interval_secs": self.interval_s}, "server": {}}
        for role in WORKERS:
            raw[role] = {"workers": [one.written for one in servers if one.role == role]}
        if "ca_file" in self.setting:
            tls = self.servers[str(self.setting["ca_file"])].tls
            assert tls is not None
            (self.workplace / "ca.pem").write_bytes(tls.ca_pem)
            raw["server"]["ca_file"] = "ca.pem"
        config = Config.model_validate(raw)
        key = self.setting.get("key")
        environ = (
            {config.server.api_key_env: "any-key" if key is True else str(key)} if key is not None else {}
        )
        targets = from_config(config, cluster="case", folder=self.workplace, environ=environ)
        return replace(targets, routers=tuple(routers))

    def _routers(self, servers: Sequence[CaseServer]) -> list[RouterTarget]:
        """Each router with the metrics port named after it."""
        routers: list[RouterTarget] = []
        for server in servers:
            if server.role == "router":
                (target,) = from_router(server.written).routers
                routers.append(replace(target, name=server.name))
            elif server.role == "router-metrics":
                routers[-1] = replace(routers[-1], metrics=Address.parse(server.written))
        return routers

    # action = poll

    async def _poll(self) -> None:
        targets = self.targets()
        console = Console(targets, Board(span_s=LONGEST_STORY_S), self.began)
        console.board.setting = Setting(targets.cluster, Config(), notices=targets.notices)
        console.board.routers_changed(targets.routers)
        poller = Poller(targets, console)
        polling = asyncio.create_task(poller.run())
        ticking = asyncio.create_task(console.tick(poller))
        try:
            for poll in range(1, self.polls + 1):
                await self._wait_for(console, polling, poll)
                for where, one in self.checks:
                    if one.get("after_poll") == poll:
                        self._look(where, one, console, poller)
            if "run_for_s" in self.given:
                await asyncio.sleep(self.began + _number(self.given["run_for_s"]) - console.now)
            for where, one in self.checks:
                if "after_poll" not in one:
                    self._look(where, one, console, poller)
                if "ui_blocked" in one:
                    blocked = longest_step_s() > UI_LIMIT_S
                    self.report.equal(f"{where} ui_blocked", one["ui_blocked"], blocked)
            if polling.done():
                self.errors.append(f"polling ended: {polling.exception()!r}")
        finally:
            for task in (polling, ticking):
                task.cancel()
            await asyncio.gather(polling, ticking, return_exceptions=True)

    async def _wait_for(self, console: Console, polling: asyncio.Task[None], poll: int) -> None:
        """Until everybody was polled so often. A target is polled again only when its answer is in."""
        while not console.polled(poll) and not polling.done():
            if console.now - self.began > LONGEST_STORY_S:
                self.errors.append(f"poll {poll} never came to an end")
                return
            await console.wait()

    def _look(self, where: str, check: Table, console: Console, poller: Poller) -> None:
        failures = self._failures(where, check, console, poller)
        choices = [_table(choice) for choice in _list(check.get("any_of"))]
        if choices:
            rest = {key: value for key, value in check.items() if key != "any_of"}
            tries = [self._failures(where, {**rest, **choice}, console, poller) for choice in choices]
            failures = [] if not all(tries) else [f"{where} any_of: none holds: {tries}"]
        self.report.failures.extend(failures)

    def _failures(self, where: str, check: Table, console: Console, poller: Poller) -> list[str]:
        report = Report(self.report.ports)
        keys = {server.name: key for server in self.servers.values() if (key := _key(server.written))}
        console.board.metrics_urls(poller.metrics_url)
        span = _span(check.get("window"), self.began)
        snapshot = console.board.snapshot(console.now, console.now, span, tick=False)
        workers = {
            keys.get(name, name): _table(one) for name, one in _table(check.get("workers", {})).items()
        }
        names = {key: name for name, key in keys.items()}
        extras = {
            worker.key: console.beside(worker, workers.get(worker.key, {}).get("state"), span)
            for worker in snapshot.workers
        }
        Look(report, snapshot, extras, names).check(where, {**check, "workers": workers})
        for rule in map(_table, _list(check.get("requests"))):
            self._rule(f"{where} requests {rule.get('to')}", rule, report)
        if "hosts_dialled" in check:
            report.equal(
                f"{where} hosts_dialled", sorted(map(str, _list(check["hosts_dialled"]))), self._hosts()
            )
        if "settings" in check:
            known = {"poll_interval_s": poller.interval_s, "timeout_s": poller.targets.settings.timeout_s}
            for name, wanted in _table(check["settings"]).items():
                report.equal(f"{where} settings {name}", wanted, known[name])
        for node, plan in _table(check.get("drain", {})).items():
            worker = snapshot.worker(keys.get(node, node))
            opinions = worker.opinions if worker is not None else ()
            ids = sorted(worker_id for opinion in opinions for worker_id in opinion.worker_ids)
            report.equal(f"{where} drain {node}", sorted(map(str, _list(_table(plan)["worker_ids"]))), ids)
        return report.failures

    # What the servers saw

    def _hosts(self) -> list[str]:
        """Nodes that got a connection, by the name of the story; routers and their ports are not counted."""
        names: set[str] = set()
        routers = {
            host for one in self.servers.values() if one.role not in WORKERS for host, _ in one.places()
        }
        for host, port in self.dialled:
            here = self._places.get((host.lower(), port))
            server = next((s for s in self.servers.values() if here and s.served.port == here[1]), None)
            if server is not None and server.role in WORKERS:
                names.add(server.name)
            elif server is None and not (host in routers and port == ROUTERS_GUESS):
                names.add(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return sorted(names)

    def _rule(self, where: str, rule: Table, report: Report) -> None:
        to = str(rule["to"])
        chosen = [one for one in self.servers.values() if to in ("any", one.name)]
        requests = [request for one in chosen for request in one.served.requests]
        if to in ("any", "other_hosts"):
            requests += self._other.requests
        if "count" in rule:
            report.equal(f"{where} count", rule["count"], len(requests))
        if "per_poll" in rule:
            for server in chosen:
                self._per_poll(where, rule["per_poll"], server, report)
        if "retries_per_poll" in rule:
            most = max((_repeats(one.served.requests, self.interval_s) for one in chosen), default=0)
            report.equal(f"{where} retries_per_poll", rule["retries_per_poll"], most)
        if "open_max" in rule:
            most = max((one.served.open_max for one in chosen), default=0)
            report.true(
                f"{where} open_max", most <= _number(rule["open_max"]), f"{most} were open at one time"
            )
        for name, value in _table(rule.get("never_header", {})).items():
            sent = {request.headers.get(str(name).lower()) for request in requests} - {None}
            bad = sent if value == "*" else sent & {value}
            report.true(f"{where} {name}", not bad, "was sent")

    def _per_poll(self, where: str, wanted: object, server: CaseServer, report: Report) -> None:
        path = "/workers" if server.role == "router" else "/metrics"
        asked = [one.at - self.began for one in server.served.requests if one.route == path]
        polls: dict[int, int] = {}
        for at in asked:
            polls[int((at + 0.01) // self.interval_s)] = polls.get(int((at + 0.01) // self.interval_s), 0) + 1
        found = sorted(set(polls.values())) or [0]
        report.true(f"{where} per_poll", all(equal(wanted, one) for one in found), f"{found} a poll")

    # action = request_check and change_worker

    async def _each_router(self, act: Callable[[Dialler, RouterTarget], Awaitable[None]]) -> None:
        targets = self.targets()
        async with Dialler(ca_file=targets.settings.ca_file) as dialler:
            for router in targets.routers:
                await act(dialler, router)

    async def _request_check(self) -> None:
        verdicts: dict[tuple[str, int], Verdict] = {}
        settings = self.targets().settings

        async def ask(dialler: Dialler, router: RouterTarget) -> None:
            for number in range(1, self.polls + 1):
                verdicts[router.name, number] = await check(
                    dialler,
                    router.address,
                    model=MODEL,
                    key=settings.key,
                    key_variable=settings.key_variable,
                )

        await self._each_router(ask)
        for where, one in self.checks:
            for name, table in self._only_routers(where, one, "check"):
                verdict = verdicts[name, int(_number(one.get("after_poll", self.polls)))]
                self._verdict(f"{where} {name}", table, verdict)
            for rule in map(_table, _list(one.get("requests"))):
                self._rule(f"{where} requests {rule.get('to')}", rule, self.report)

    def _verdict(self, where: str, wanted: Table, verdict: Verdict) -> None:
        report = self.report
        if "ok" in wanted:
            report.true(f"{where} ok", wanted["ok"] is verdict.ok, f"{verdict.ok}: {verdict.words}")
        if "text" in wanted:
            report.equal(f"{where} text", wanted["text"], verdict.text if verdict.ok else None)
        if "text_so_far" in wanted:
            report.equal(f"{where} text_so_far", wanted["text_so_far"], verdict.text)
        report.mentions(f"{where} mentions", _list(wanted.get("mentions")), verdict.words)

    async def _change_worker(self) -> None:
        changes: dict[str, tuple[Changed, float, str | None]] = {}
        settings = self.targets().settings
        fields = _table(self.given.get("change", {}))

        async def change(dialler: Dialler, router: RouterTarget) -> None:
            async def ask(method: str, path: str, content: bytes | None) -> Answer:
                key = settings.admin_key or settings.key
                return await dialler.request(method, router.address, path, content=content, key=key)

            began = asyncio.get_running_loop().time()
            changed = await change_worker(ask, WORKER_ID, fields)
            took = asyncio.get_running_loop().time() - began
            shown = _state_word(await ask("GET", f"/workers/{WORKER_ID}", None))
            changes[router.name] = changed, took, shown

        await self._each_router(change)
        for where, one in self.checks:
            for name, table in self._only_routers(where, one, "change"):
                self._changed(f"{where} {name}", table, self.servers[name], *changes[name])
            for rule in map(_table, _list(one.get("requests"))):
                self._rule(f"{where} requests {rule.get('to')}", rule, self.report)

    def _changed(
        self, where: str, wanted: Table, server: CaseServer, changed: Changed, took: float, state: str | None
    ) -> None:
        report = self.report
        for name, value in wanted.items():
            match name:
                case "method":
                    report.value(f"{where} method", value, changed.method)
                case "result":
                    report.value(f"{where} result", value, changed.result)
                case "worker_state":
                    report.value(f"{where} worker_state", value, state)
                case "shown_within_s":
                    report.true(f"{where} shown_within_s", took <= _number(value), f"took {took:.1f} s")
                case _:
                    methods = [request.method for request in server.served.requests[:-1]]  # without our own
                    read = changed.result is Result.DONE and methods[-1] == "GET"
                    report.true(f"{where} done_after", read, f"{changed.result} after {methods}")

    def _only_routers(self, where: str, check: Table, key: str) -> Iterator[tuple[str, Table]]:
        """The routers' tables of a check, which may hold nothing but ``key`` where nobody polls."""
        known = {"after_poll", "run", "routers", "requests"}
        for other in check.keys() - known:
            self.report.fail(f"{where} {other}", f"needs action poll, not {self.given['action']}")
        for name, table in _table(check.get("routers", {})).items():
            for other in _table(table).keys() - {key}:
                self.report.fail(f"{where} {name} {other}", f"needs action poll, not {self.given['action']}")
            if key in _table(table):
                yield name, _table(_table(table)[key])


def _state_word(answer: Answer) -> str | None:
    """The state of the worker as its router's row shows it."""
    found = read_workers(b'{"workers": [' + (answer.body or b"null") + b"]}")
    return found[0].health if found else None


def _repeats(requests: Sequence[Request], interval_s: float) -> int:
    """Most requests for one path that came sooner after the one before than any pace would have it."""
    repeats: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], float] = {}
    for request in requests:
        what = request.method, request.path
        if what in last and request.at - last[what] < min(interval_s, 1.0) / 2:
            repeats[what] = repeats.get(what, 0) + 1
        last[what] = request.at
    return max(repeats.values(), default=0)


def _key(written: str) -> str | None:
    try:
        return Address.parse(written).key
    except AddressError:
        return None


def _span(window: object, began: float) -> Span:
    """``"a-b"``, ``"lifetime"`` or nothing: the product's default."""
    if window is None:
        return WINDOW_S
    if window == "lifetime":
        return None
    start, _, end = str(window).partition("-")
    return began + float(start), began + float(end) + SLACK_S


def _table(value: object) -> Table:
    assert isinstance(value, Mapping)
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
