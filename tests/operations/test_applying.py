"""What is said of pdtop's own router, which reads config.toml itself: done only when it has it in force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pdtop.config.load import load_bytes
from pdtop.config.schema import Config
from pdtop.operations.applying import changed_workers
from pdtop.operations.model import Drain, Outcome, Phase, SetValue, SetWeight, Undrain
from pdtop.routers.effective import Effective, not_in_force, read_effective
from tests.operations.plant import done, embedded, plant, virtual

THRESHOLD = SetValue(("prefill", "cache_aware_threshold"), "0.45")


@virtual
async def test_a_threshold_is_done_when_the_router_has_it_in_force(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, embedded(cluster) as gateway, cluster.console() as console:
        operation = await console.do(THRESHOLD)
        assert done(operation), operation
        assert operation.routers[0].words == "the router shows what the file says"
        assert gateway.fleet.prefill.rules.cache_aware_threshold == 0.45
        assert done(await console.do(SetWeight(cluster.decode[0].key, 0.5)))
        assert [one.weight for one in gateway.fleet.decode] == [0.5, 1.0, 1.0]


@virtual
async def test_a_drain_is_seen_in_the_router_that_reads_the_file(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, embedded(cluster) as gateway, cluster.console() as console:
        worker = cluster.decode[0]
        worker.running = 2
        operation = await console.do(Drain((worker.key,)))
        assert operation.phase is Phase.DRAINING
        assert [one.draining for one in gateway.fleet.decode] == [True, False, False]
        worker.running = 0
        assert done(await console.ended(operation))
        assert done(await console.do(Undrain((worker.key,))))
        assert [one.draining for one in gateway.fleet.decode] == [False, False, False]


@virtual
async def test_a_router_that_follows_no_file_is_not_called_done(tmp_path: Path) -> None:
    async with (
        plant(tmp_path) as cluster,
        embedded(cluster, follows=False) as gateway,
        cluster.console() as console,
    ):
        operation = await console.do(THRESHOLD)
        assert operation.outcome is Outcome.ACCEPTED_NOT_APPLIED
        assert operation.words == (
            "it has not taken the file over after 5 s: prefill.cache_aware_threshold is another there; "
            "it follows no file"
        )
        assert operation.next_step == "restart it with this config.toml"
        assert gateway.fleet.prefill.rules.cache_aware_threshold == 0.3


@virtual
async def test_a_file_that_the_router_rejects_is_told_in_its_words(tmp_path: Path) -> None:
    async with plant(tmp_path) as cluster, embedded(cluster) as gateway, cluster.console() as console:
        cluster.write(cluster.text.replace('policy = "round_robin"', 'policy = "consistent_hashing"'))
        edited = await console.shown(lambda one: one.source == "config.toml edited" and one.ended)
        assert edited.outcome is Outcome.ACCEPTED_NOT_APPLIED
        assert edited.words.startswith(
            "it has rejected the file: prefill.policy = 'consistent_hashing': this"
        )
        assert gateway.fleet.prefill.policy == "round_robin"


def config(text: str) -> Config:
    found = load_bytes(Path("config.toml"), text.encode()).config
    assert found is not None
    return found


def test_workers_of_which_the_file_says_something_else() -> None:
    first = config('[decode]\nworkers = ["a:1", "b:1"]\n[prefill]\nworkers = ["p:1"]')
    assert changed_workers(first, first) == frozenset()
    assert changed_workers(None, first) is None
    second = config(
        '[decode]\nworkers = ["a:1", "c:1"]\n[prefill]\nworkers = ["http://p:1"]\n'
        '[decode.worker."a:1"]\ndrain = true'
    )
    assert changed_workers(first, second) == frozenset({"a:1", "b:1", "c:1"})


def test_settings_in_force_are_compared_key_by_key() -> None:
    wanted = config(
        '[decode]\nworkers = ["a:1"]\n[decode.worker."a:1"]\nweight = 2.0\n[slo]\nttft_p99_ms = 1'
    )
    there = wanted.model_dump(mode="json")
    same = Effective(there)
    assert not_in_force(same, wanted) == ()
    assert not_in_force(Effective(there | {"health": {"interval_secs": 5}}), wanted) == ()  # JSON's 5 is 5.0
    assert not_in_force(Effective(there | {"slo": {}}), wanted) == ()  # nothing that it serves by
    other = {"workers": ["a:1", "b:1"], "policy": "random", "newer": 1}
    assert not_in_force(replace(same, settings=there | {"decode": there["decode"] | other}), wanted) == (
        "decode.workers",
        "decode.policy",
    )
    tables = there["decode"] | {"worker": {}}
    assert not_in_force(Effective(there | {"decode": tables}), wanted) == ('decode.worker."a:1"',)
    hidden = there["decode"] | {"policy": "••••••"}
    assert not_in_force(Effective(there | {"decode": hidden}), wanted) == ()


def test_settings_of_a_stranger() -> None:
    assert read_effective(b"<html>") is None
    assert read_effective(b'{"config": 3}') is None
    assert read_effective(
        b'{"config": {}, "reload": {"outcome": "rejected", "words": "a\\nb"}}'
    ) == Effective({}, None, "a b")
    assert read_effective(b'{"config": {}, "reload": {"outcome": "accepted", "words": "x"}}') == Effective({})
