"""Which worker a text means, and where it stands in config.toml."""

from __future__ import annotations

import pytest

from pdtop.cluster.model import Identity, Role, Worker
from pdtop.operations.model import Guard
from pdtop.operations.resolve import bootstrap_port, find_worker, find_workers, places
from pdtop.routers.spec import WorkerSpec
from tests.insight.scenes import opinion, scene, worker
from tests.operations.scenes import CONFIG, D1, D2, D3, P1, cluster, loaded

WORKERS = (
    worker("10.0.1.11:30001", Role.PREFILL),
    worker("10.0.2.22:30001"),
    worker("10.0.12.22:30001"),
    worker("127.0.0.1:30005", name="localhost:30005"),
    worker("gpu-d2.example:30001", name="GPU-D2.example:30001"),
    worker("[fd00::7]:30001"),
    worker("node-d9:30001", name="D9"),
)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("10.0.2.22:30001", "10.0.2.22:30001"),
        ("http://10.0.2.22:30001/", "10.0.2.22:30001"),
        ("10.0.2.22:30001@3", "10.0.2.22:30001"),
        (" 2.22 ", "10.0.2.22:30001"),
        (".2.22", "10.0.2.22:30001"),
        ("2.22:30001", "10.0.2.22:30001"),
        ("12.22", "10.0.12.22:30001"),
        ("11", "10.0.1.11:30001"),
        ("localhost:30005", "127.0.0.1:30005"),
        ("0.0.0.0:30005", "127.0.0.1:30005"),
        (":30005", "127.0.0.1:30005"),
        ("30005", "127.0.0.1:30005"),
        ("D9", "node-d9:30001"),
        ("d2.example", "gpu-d2.example:30001"),
        ("[FD00:0::7]:30001", "[fd00::7]:30001"),
        ("7]", "[fd00::7]:30001"),
    ],
)
def test_one_is_meant(text: str, key: str) -> None:
    found = find_worker(text, WORKERS)
    assert isinstance(found, Worker), found
    assert found.key == key


@pytest.mark.parametrize(
    ("text", "words", "to_change"),
    [
        ("22", "'22' fits 2 workers: 10.0.2.22:30001, 10.0.12.22:30001", "write more of the name"),
        (
            "10.0.2.23:30001",
            "there is no worker '10.0.2.23:30001'",
            "did you mean 10.0.2.22:30001? workers: 10.0.1.11:30001, 10.0.2.22:30001, 10.0.12.22:30001, "
            "localhost:30005, GPU-D2.example:30001, [fd00::7]:30001, D9",
        ),
        (
            "zzz",
            "there is no worker 'zzz'",
            "workers: 10.0.1.11:30001, 10.0.2.22:30001, 10.0.12.22:30001, "
            "localhost:30005, GPU-D2.example:30001, [fd00::7]:30001, D9",
        ),
    ],
)
def test_none_is_meant(text: str, words: str, to_change: str) -> None:
    assert find_worker(text, WORKERS) == Guard("unknown_worker", words, to_change)


def test_without_workers_and_without_text() -> None:
    assert find_worker("d1", ()) == Guard("unknown_worker", "there is no worker 'd1'", "no worker is watched")
    found = find_worker("", WORKERS)
    assert isinstance(found, Guard)
    assert found.text == "no worker is named"


def test_long_lists_are_cut() -> None:
    found = find_worker("nobody", [worker(f"10.0.0.{n}:1") for n in range(1, 12)])
    assert isinstance(found, Guard)
    assert found.to_change.endswith("10.0.0.8:1 and 3 more")


def test_control_characters_of_a_router_do_not_reach_the_message() -> None:
    found = find_worker("x\x1b[2J", [worker("a:1", name="a\x1b[31m")])
    assert isinstance(found, Guard)
    assert "\x1b" not in found.text + found.to_change


def test_several_each_once() -> None:
    found = find_workers(["2.22", "http://10.0.2.22:30001", "nobody"], scene(*WORKERS))
    assert [w.key for w in found.workers] == ["10.0.2.22:30001"]
    assert [g.kind for g in found.guards] == ["unknown_worker"]


CONFIG_SPELLED = """\
[prefill]
workers = ["HTTP://Node-1:30001/"]
[prefill.worker."node-1:30001"]
bootstrap_port = 8998
[decode]
workers = ["http://d:1@0", "http://d:1@1", "e:1"]
[decode.worker."d:1"]
drain = true
"""


def test_places_are_found_in_any_spelling() -> None:
    config = loaded(CONFIG_SPELLED).config
    assert config is not None
    (one,) = places(config, "node-1:30001")
    assert (one.pool, one.written, one.table) == ("prefill", "HTTP://Node-1:30001/", "node-1:30001")
    assert one.settings.bootstrap_port == 8998
    assert one.path == ("prefill", "worker", "node-1:30001")
    ranks = places(config, "d:1")
    assert [place.written for place in ranks] == ["http://d:1@0", "http://d:1@1"]
    assert {place.path for place in ranks} == {("decode", "worker", "d:1")}
    (bare,) = places(config, "e:1")
    assert bare.table is None
    assert bare.path == ("decode", "worker", "e:1")
    assert not bare.settings.drain
    assert places(config, "f:1") == ()


def test_who_says_the_bootstrap_port() -> None:
    config, written = (
        loaded().config,
        loaded(CONFIG + f'[prefill.worker."{P1}"]\nbootstrap_port = 1\n').config,
    )
    assert config is not None
    assert written is not None
    spec = {P1: WorkerSpec(f"http://{P1}", Role.PREFILL, bootstrap_port=2)}
    listed = worker(P1, Role.PREFILL, opinions=(opinion(bootstrap_port=3),))
    says = worker(P1, Role.PREFILL, identity=Identity(bootstrap_port=4))
    assert bootstrap_port(P1, cluster(listed), written, spec) == (1, "config.toml")
    assert bootstrap_port(P1, cluster(listed), config, spec) == (2, "as it was when it was taken out")
    assert bootstrap_port(P1, cluster(listed), config, {}) == (3, "as r lists it")
    assert bootstrap_port(P1, cluster(says), config, {}) == (4, "as the worker says")
    assert bootstrap_port(P1, cluster(), config, {}) is None
    assert {D1, D2, D3} == {w.key for w in cluster().pool_workers(Role.DECODE)}
