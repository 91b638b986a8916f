"""The stub servers of a case of kind http, and where the product's connections to them really go."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pdtop.cluster.address import Address, AddressError
from tests.cases.values import with_ports
from tests.cluster.stub_server import Reply, Request, StubServer, Tls, self_signed
from tests.cluster.virtual_time import Place

Table = Mapping[str, object]
WORKER_ID = "11111111-2222-4333-8444-555555555555"
WORKERS = ("prefill", "decode")


@dataclass(slots=True)
class CaseServer:
    """One server of the story. ``poll``: which poll is meant by ``polls`` of a route, at this moment."""

    table: Table
    folder: Path
    ports: Mapping[str, int]
    by_request: bool
    tls: Tls | None
    served: StubServer = field(init=False)
    changed: dict[str, dict[str, object]] = field(default_factory=dict)  # by path: what reads show by now
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return str(self.table["name"])

    @property
    def role(self) -> str:
        return str(self.table["role"])

    @property
    def story_port(self) -> int | None:
        port = self.table.get("port")
        return int(port) if isinstance(port, int | float) else None

    @property
    def url(self) -> str:
        """The right address, as the operator would write it."""
        if self.tls is not None:
            return f"https://{_table(self.table['tls'])['cn']}:{self.story_port or self.served.port}"
        try:
            named = Address.parse(self.name)
        except AddressError:
            named = None
        if named is not None and re.search(r":\d+$", self.name):
            return f"http://{named.netloc}"
        return f"http://127.0.0.1:{self.served.port}"

    @property
    def written(self) -> str:
        """The address as the operator wrote it."""
        written = self.table.get("url_written")
        return with_ports(str(written), self.ports) if written is not None else self.url

    def places(self) -> dict[Place, Place]:
        """Every name and port by which the story speaks of this server."""
        here = ("127.0.0.1", self.served.port)
        ports = {self.served.port, self.story_port or self.served.port}
        hosts = {"127.0.0.1", "localhost", self.name.lower()}
        places = {(host, port): here for host in hosts for port in ports}
        for text in (self.url, self.written):
            try:
                address = Address.parse(text)
            except AddressError:
                continue
            if address.port in ports or text == self.url:
                places[address.host, address.port] = here
        return places

    async def answer(self, request: Request) -> Reply:
        """What the first fitting route says."""
        self.counts[request.method, request.route] += 1
        for route in map(_table, _list(self.table.get("routes"))):
            if self._fits(route, request):
                if route.get("hang"):
                    await asyncio.Event().wait()
                return self._reply(route, request)
        if request.method == "GET" and request.route in self.changed:
            return self._shown(request, {})
        return Reply(404)

    def _fits(self, route: Table, request: Request) -> bool:
        if str(route.get("method", "GET")) != request.method:
            return False
        if _with_id(str(route["path"])) not in (request.route, request.path):
            return False
        polls = route.get("polls")
        if isinstance(polls, list) and self._poll(request) not in polls:
            return False
        return _allowed(_table(route.get("when", {})), request.headers.get("authorization"))

    def _poll(self, request: Request) -> int:
        """With the request check, requests are counted; else what the console asks for the numbers."""
        if self.by_request:
            return self.counts[request.method, request.route]
        return max(self.counts["GET", "/workers" if self.role == "router" else "/metrics"], 1)

    def _reply(self, route: Table, request: Request) -> Reply:
        if request.method == "GET" and request.route in self.changed:
            shown = json.loads(self._body(route) or b"{}")
            return self._shown(request, shown if isinstance(shown, dict) else {})
        effect = route.get("effect")
        if isinstance(effect, Mapping):
            self._plan(request, effect.get("applies_after_s"))
        headers = _table(route.get("headers", {}))
        drip = route.get("drip")
        chunk_bytes = route.get("chunk_bytes")
        packed = route.get("encode") == "gzip"
        return Reply(
            status=int(_number(route.get("status", 200))),
            headers={
                str(name): with_ports(str(value), self.ports)
                for name, value in headers.items()
                if not (packed and str(name).lower() == "content-encoding")
            },
            body=self._body(route),
            delay_s=_number(route.get("delay_s", 0)),
            packed=packed,
            chunked=bool(route.get("chunked")),
            chunk_bytes=int(_number(chunk_bytes)) if chunk_bytes is not None else None,
            drip=(int(_number(drip["chunks"])), _number(drip["over_s"]))
            if isinstance(drip, Mapping)
            else None,
        )

    def _body(self, route: Table) -> bytes:
        if "body_file" in route:
            return (self.folder / str(route["body_file"])).read_bytes()
        return with_ports(_with_id(str(route.get("body", ""))), self.ports).encode()

    def _plan(self, request: Request, applies_after_s: object) -> None:
        """A change is queued; from its time on reads of the path show it. None: never."""
        shown = self.changed.setdefault(request.route, {})
        if applies_after_s is not None:
            fields = json.loads(request.body or b"{}")
            asyncio.get_running_loop().call_later(_number(applies_after_s), shown.update, fields)

    def _shown(self, request: Request, base: dict[str, object]) -> Reply:
        worker = {"id": request.route.rpartition("/")[2], **base, **self.changed[request.route]}
        return Reply(headers={"content-type": "application/json"}, body=json.dumps(worker).encode())


async def serve(
    stack: AsyncExitStack, tables: list[Table], folder: Path, *, by_request: bool
) -> dict[str, CaseServer]:
    """Start them all; by name, in the order of the case."""
    ports: dict[str, int] = {}
    servers: dict[str, CaseServer] = {}
    for table in tables:
        tls = self_signed(str(_table(table["tls"])["cn"])) if table.get("tls") else None
        server = CaseServer(table, folder, ports, by_request, tls)
        server.served = await stack.enter_async_context(
            StubServer(server.answer, tls=tls.server if tls else None)
        )
        ports[server.name] = server.served.port
        servers[server.name] = server
    return servers


def _allowed(when: Table, authorization: str | None) -> bool:
    if when.get("authorization") == "missing_or_wrong":
        return True
    if "authorization_is" in when:
        return authorization == when["authorization_is"]
    if "authorization_is_not" in when:
        return authorization != when["authorization_is_not"]
    return True


def _with_id(text: str) -> str:
    return re.sub(r"\bID\b", WORKER_ID, text)


def _table(value: object) -> Table:
    assert isinstance(value, Mapping)
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
