"""How often something may happen, under each of many names, in bounded memory.

The generic cell rate algorithm (ITU-T I.371, Annex A): all that is stored of a name is when its tokens are complete.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from ipaddress import ip_address, ip_network

import trio

from pattern_core.errors import Overloaded
from pattern_server.accounts import Principal
from pattern_server.sections import HttpConfig

KNOWN_MAX = 10_000  # names of one rate; the one that was used longest ago is forgotten
BURST_S = 10.0  # requests of this time may come at once


class Rate:
    """Allows `most` uses at once under each name, and then one per `every_s`. `what` names the uses in errors."""

    def __init__(self, most: float, every_s: float, what: str) -> None:
        self._most, self._every_s, self._what = most, every_s, what
        self._full_at: OrderedDict[str, float] = OrderedDict()  # when all uses are allowed again, by trio's clock

    @classmethod
    def per_second(cls, count: float, what: str) -> Rate:
        """Return what allows so many uses a second, and those of `BURST_S` at once."""
        return cls(max(1.0, count * BURST_S), 1 / count, what)

    def use(self, name: str, patience_s: float = 0.0, uses: int = 1) -> float:
        """Use one, or as many; return for how many seconds to wait until that is allowed, at most `patience_s`.

        Raises:
            Overloaded: it would be longer.
        """
        before = self._full_at.get(name, 0.0)
        if (wait_s := self.spend(name, uses)) > patience_s:
            self._full_at[name] = before
            seconds = math.ceil(wait_s)
            raise Overloaded(f"too many {self._what}; try again in {seconds} s", retry_after_s=seconds)
        return wait_s

    def spend(self, name: str, uses: int) -> float:
        """Use so many, whether or not they are left; return for how many seconds none is left then."""
        now = trio.current_time()
        self._full_at[name] = full_at = max(self._full_at.get(name, now), now) + uses * self._every_s
        self._full_at.move_to_end(name)
        while len(self._full_at) > KNOWN_MAX:
            self._full_at.popitem(last=False)
        return max(0.0, full_at - now - self._most * self._every_s)

    def forget(self, name: str) -> None:
        """Allow all uses under this name again."""
        self._full_at.pop(name, None)


class RequestRates:
    """How many requests a second clients may send: an address without a valid token, a token, a user, and all users
    to one constellation.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._of_address = Rate.per_second(config.rate_per_address, "requests without a token from this address")
        self._of_token = Rate.per_second(config.rate_per_token, "requests with this token")
        self._of_user = Rate.per_second(config.rate_per_user, "requests of this user")
        self._of_constellation = Rate.per_second(config.rate_per_constellation, "requests to this constellation")

    def use_address(self, address: str) -> None:
        """Count a request without a valid token. Raises Overloaded: there are too many."""
        self._of_address.use(network_of(address))

    def use_token(self, caller: Principal, constellation: str | None) -> None:
        """Count a request with a valid token, to a constellation or to none. Raises Overloaded: there are too many."""
        self._of_token.use(caller.token_id or caller.username)
        self._of_user.use(caller.user_id)
        if constellation is not None:
            self._of_constellation.use(constellation)


def network_of(address: str) -> str:
    """Return what one client is known to have: an IPv4 address, or the 2**64 addresses of an IPv6 network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(ip_network((found, 64), strict=False))
