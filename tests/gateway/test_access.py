"""Keys: who may do what."""

from __future__ import annotations

import pytest

from pdtop.config.schema import Server
from pdtop.gateway.access import Keys, Side, refusal

NONE, DATA, ADMIN, BOTH = Keys(None, None), Keys("d", None), Keys(None, "a"), Keys("d", "a")


@pytest.mark.parametrize(
    ("keys", "side", "given", "status"),
    [
        (NONE, "data", None, None),
        (NONE, "read", None, None),
        (NONE, "change", None, None),
        (DATA, "data", None, 401),
        (DATA, "data", "Bearer d", None),
        (DATA, "data", "bearer  d ", None),
        (DATA, "data", "Basic d", 401),
        (DATA, "data", "d", 401),
        (DATA, "read", "Bearer d", None),
        (DATA, "read", None, 401),
        (DATA, "change", "Bearer d", None),
        (DATA, "change", "Bearer dd", 401),
        (ADMIN, "data", None, None),
        (ADMIN, "read", None, 401),
        (ADMIN, "change", "Bearer a", None),
        (BOTH, "data", "Bearer a", 401),
        (BOTH, "read", "Bearer a", None),
        (BOTH, "read", "Bearer d", None),
        (BOTH, "change", "Bearer d", 401),
        (BOTH, "change", "Bearer a", None),
        (BOTH, "change", "Bearer ä", 401),
    ],
)
@pytest.mark.parametrize("exposed", [False, True])
def test_keys(keys: Keys, side: Side, given: str | None, status: int | None, exposed: bool) -> None:
    found = refusal(keys, side, given, exposed=exposed, page=False)
    if exposed and keys == NONE and side == "change":
        assert found is not None and (found.status, found.code) == (403, "admin_api_off")
    else:
        assert (found.status if found else None) == status


def test_no_web_page_changes_anything_without_a_key() -> None:
    assert refusal(NONE, "change", None, exposed=False, page=True) is not None
    assert refusal(NONE, "read", None, exposed=False, page=True) is None
    assert refusal(DATA, "change", "Bearer d", exposed=True, page=True) is None


def test_keys_come_from_the_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "d")
    monkeypatch.setenv("MY_ADMIN", "")
    assert Keys.of(Server(api_key_env="MY_KEY", admin_key_env="MY_ADMIN")) == Keys("d", None)
