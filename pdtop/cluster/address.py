"""One form for every address: what the operator, the config or a router wrote, and what is dialled for it.

Rules
- No scheme means ``http``. A port that is missing is the scheme's own (80, 443) if a scheme was written, and
  30000 (SGLang's default) if not.
- ``@N`` at the very end is a DP rank (routers that schedule ranks list ``http://host:port@0``, ``@1``, ...):
  it names a part of a worker and is never dialled.
- ``user:password@`` in front is sent as basic authentication and shown nowhere.
- The canonical key is ``host:port`` in lower case, IPv6 in brackets, plus the base path if there is one.
  ``localhost`` and ``0.0.0.0`` are ``127.0.0.1``, ``[::]`` is ``[::1]``.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote

WORKER_PORT = 30000  # SGLang's --port default
_SCHEME_PORTS = {"http": 80, "https": 443, "grpc": WORKER_PORT, "grpcs": WORKER_PORT}
_RANK = re.compile(r"@(\d{1,6})/?$", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")
_DIGITS_AND_DOTS = re.compile(r"[0-9.]+")
_NOT_BASE = ("/metrics", "/v1")  # pasted routes that are not part of a worker's base path
_ALIASES = {"localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, never bound
CHAT_PATH = "/v1/chat/completions"


class AddressError(ValueError):
    """The text is no address; the message says what is wrong with it and what to write instead."""


@dataclass(frozen=True, slots=True)
class Address:
    """A worker's or router's HTTP address, taken apart. Make it with :meth:`parse`.

    ``host`` is dialled as it was written (lower case, IPv6 without brackets); ``key`` is canonical.
    ``warning`` says what about the text was odd but could be read.
    """

    scheme: str
    host: str
    port: int
    path: str = ""  # base path without a trailing slash
    rank: str | None = None
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    warning: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str, *, default_port: int = WORKER_PORT) -> Address:
        """Read an address as a person or a router writes it. Raises :class:`AddressError`."""
        shown = _harmless(text.strip())
        rest = text.strip()
        if not rest:
            raise AddressError("the address is empty; write host:port, e.g. 10.0.1.11:30001")
        if any(c.isspace() or not c.isprintable() for c in rest) or "\\" in rest:
            raise AddressError(f"'{shown}' holds a space, a backslash or a control character")
        rank, rest = _take_rank(rest)
        scheme, rest = _take_scheme(rest, shown)
        if "?" in rest or "#" in rest:
            raise AddressError(f"'{shown}': write the address without '?' and '#'")
        authority, slash, path = rest.partition("/")
        credentials, authority = _take_credentials(authority, shown)
        host, port_text, warning = _split_port(authority, shown)
        host = _host(host, shown)
        if port_text is None:
            port = _SCHEME_PORTS[scheme] if scheme else default_port
        elif not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text[:9]) <= 65535):
            raise AddressError(f"'{shown}': the port must be a number from 1 to 65535")
        else:
            port = int(port_text)
        base, path_warning = _base_path(slash + path)
        if host in ("0.0.0.0", "::"):  # noqa: S104 - read, never bound
            warning = f"{host} is an address to listen on, not one to dial; this machine is dialled instead"
        return cls(scheme or "http", host, port, base, rank, credentials, warning or path_warning)

    @property
    def key(self) -> str:
        """Canonical name of the node: equal for every way of writing the same one."""
        return _netloc(_ALIASES.get(self.host, self.host), self.port) + self.path

    @property
    def shown_as(self) -> str:
        """Text for the screen: no scheme, no password, no rank."""
        return _netloc(self.host, self.port) + self.path

    @property
    def netloc(self) -> str:
        """``host:port`` as it is dialled."""
        return _netloc(self.host, self.port)

    @property
    def host_header(self) -> str:
        """``host:port``, without the port if it is the scheme's own."""
        full = _netloc(self.host, self.port)
        return full.rpartition(":")[0] if self.port == _SCHEME_PORTS[self.scheme] else full

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def speaks_http(self) -> bool:
        """False for gRPC workers: their metrics are on a port that the address does not tell."""
        return self.scheme in ("http", "https")

    @property
    def base_url(self) -> str:
        """Scheme, host, port and base path; never the rank, never a password."""
        return f"{self.scheme}://{self.netloc}{self.path}"

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are read; None if the address does not tell (gRPC)."""
        return self.base_url + "/metrics" if self.speaks_http else None

    @property
    def authorization(self) -> str | None:
        """Value of the ``Authorization`` header for ``user:password@``. Secret."""
        if self.credentials is None:
            return None
        return "Basic " + base64.b64encode(":".join(self.credentials).encode()).decode("ascii")

    @property
    def is_loopback(self) -> bool:
        host = _ALIASES.get(self.host, self.host)
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host.endswith(".localhost")

    def same_node_as(self, other: Address) -> bool:
        """True if both addresses are the same worker (whatever the rank)."""
        return self.key == other.key


@dataclass(frozen=True, slots=True)
class ChatUrl:
    """The chat endpoint for a base address. ``warning`` is empty if the base is as it should be."""

    url: str
    warning: str = ""


def chat_url(base: str) -> ChatUrl:
    """The chat endpoint under ``base``, which should end before ``/v1``. Raises :class:`AddressError`."""
    shown = _harmless(base.strip())
    match = _SCHEME.match(base.strip())
    if match is None or match[1].lower() not in ("http", "https"):
        raise AddressError(f"'{shown}' needs http:// or https:// in front")
    address = Address.parse(base)
    start, _, rest = base.strip().partition("://")
    authority, slash, path = rest.partition("/")
    path = (slash + path).rstrip("/")
    warning = ""
    for end in (CHAT_PATH, "/v1"):
        if path.endswith(end):
            path = path.removesuffix(end)
            warning = f"'{shown}' ends in {end}; write it without, other tools add /v1 themselves"
            break
    if address.credentials is not None:
        authority = authority.rpartition("@")[2]
        warning = warning or "the base address holds a user or password; name a key variable instead"
    return ChatUrl(f"{start.lower()}://{authority}{path}{CHAT_PATH}", warning)


def _harmless(text: str) -> str:
    """For messages: printable, short, and without what may be a password."""
    scheme, mark, rest = text.rpartition("://")
    rank = _RANK.search(rest)
    end = rank.start() if rank else len(rest)
    if "@" in rest[:end]:
        rest = "…@" + rest[:end].rpartition("@")[2] + rest[end:]
    text = "".join(c if c.isprintable() else "·" for c in scheme + mark + rest)
    return text if len(text) <= 100 else text[:99] + "…"


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _take_rank(rest: str) -> tuple[str | None, str]:
    match = _RANK.search(rest)
    if match is None or match.start() == 0 or rest[match.start() - 1] == "/":
        return None, rest
    return str(int(match[1])), rest[: match.start()]


def _take_scheme(rest: str, shown: str) -> tuple[str | None, str]:
    match = _SCHEME.match(rest)
    if match is None:
        if "://" in rest or re.match(r"https?:?/", rest, re.IGNORECASE):
            raise AddressError(f"'{shown}': write http://host:port or host:port")
        return None, rest
    scheme = match[1].lower()
    if scheme not in _SCHEME_PORTS:
        raise AddressError(f"'{shown}': {scheme}:// cannot be watched; write http:// or https://")
    return scheme, rest[match.end() :]


def _take_credentials(authority: str, shown: str) -> tuple[tuple[str, str] | None, str]:
    userinfo, at, host = authority.rpartition("@")
    if not at:
        return None, authority
    user, _, password = userinfo.partition(":")
    if is_ip(user):  # 10.0.2.21:30001@x: an address in the place of a user
        raise AddressError(f"'{shown}': what follows '@' must be a rank number, e.g. {user}:30001@0")
    if "@" in userinfo:
        raise AddressError(f"'{shown}': more than one '@'; write '@' in a password as %40")
    return (unquote(user), unquote(password)), host


def _split_port(authority: str, shown: str) -> tuple[str, str | None, str]:
    """Host, port text (None: not given), and a warning if it had to be guessed."""
    if authority.startswith("["):
        host, bracket, after = authority[1:].partition("]")
        if not bracket:
            raise AddressError(f"'{shown}': the ']' is missing; write [fd00:1::22]:30001")
        if after and not after.startswith(":"):
            raise AddressError(f"'{shown}': after ']' only :port may follow")
        if not is_ip(host) or ":" not in host:
            raise AddressError(f"'{shown}': no IPv6 address in the brackets")
        return host, after[1:] if after else None, ""
    if authority.count(":") > 1:
        if is_ip(authority):
            start, _, last = authority.rpartition(":")
            doubt = len(last) == 4 and last.isdigit()
            hint = f"read as IPv6 without a port; for a port write [{start}]:{last}"
            return authority, None, hint if doubt else ""
        host, _, port = authority.rpartition(":")
        if is_ip(host):
            return host, port, ""
        raise AddressError(f"'{shown}': too many ':'; write host:port, or [fd00:1::22]:30001 for IPv6")
    host, colon, port = authority.partition(":")
    return host, port if colon else None, ""


def is_ip(host: str) -> bool:
    """Whether the host is a literal address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _host(host: str, shown: str) -> str:
    """The host in lower case; IP addresses in their shortest spelling."""
    if not host:
        raise AddressError(f"'{shown}': the host is missing; write host:port")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    if _DIGITS_AND_DOTS.fullmatch(host):
        raise AddressError(f"'{shown}': {host} is not an IPv4 address")
    try:
        name = host.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        raise AddressError(f"'{shown}': this is no host name") from None
    if not _HOST.fullmatch(name):
        raise AddressError(f"'{shown}': this is no host name")
    return name


def _base_path(path: str) -> tuple[str, str]:
    """The path without trailing slashes and without a pasted route, and a warning about such a route."""
    path = path.rstrip("/")
    for route in _NOT_BASE:
        if path.endswith(route):
            return path.removesuffix(route).rstrip("/"), f"{route} is not part of a worker's address"
    return path, ""
