"""Who may do what: bearer keys for the data and the admin side, from environment variables.

The variables' names stand in config.toml (``[server] api_key_env``, ``admin_key_env``). Without any key the
data side is open, and changes through the admin API are taken on a loopback address only.
"""

from __future__ import annotations

import hmac
import os
from typing import Literal, NamedTuple

from pdtop.config.schema import Server

Side = Literal["data", "read", "change"]


class Refusal(NamedTuple):
    status: int
    code: str
    words: str


class Keys(NamedTuple):
    """The keys in force; secret. None: there is none."""

    data: str | None
    admin: str | None

    @classmethod
    def of(cls, server: Server) -> Keys:
        return cls(server.api_key(), os.environ.get(server.admin_key_env) or None)


def refusal(
    keys: Keys, side: Side, authorization: str | None, *, exposed: bool, page: bool
) -> Refusal | None:
    """Why a request is refused; None if it is not.

    ``read`` (worker list, loads, configuration) takes either key; ``change`` the admin key, else the data
    key. ``exposed``: bound to more than loopback. ``page``: sent by a script of some web page.
    """
    valid = {
        "data": [keys.data],
        "read": [keys.data, keys.admin],
        "change": [keys.admin or keys.data],
    }[side]
    wanted = [key for key in valid if key is not None]
    if wanted:
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and any(_equal(given.strip(), key) for key in wanted):
            return None
        return Refusal(401, "invalid_api_key", "a valid bearer key is needed")
    if side == "change" and exposed:
        words = (
            "without a key the admin API is off on an address that others reach; set one, see admin_key_env"
        )
        return Refusal(403, "admin_api_off", words)
    if side == "change" and page:
        return Refusal(403, "admin_api_off", "without a key no web page may change anything")
    return None


def _equal(given: str, key: str) -> bool:
    # Bytes of a header that are no text come as surrogates.
    return hmac.compare_digest(given.encode(errors="surrogateescape"), key.encode(errors="surrogateescape"))
