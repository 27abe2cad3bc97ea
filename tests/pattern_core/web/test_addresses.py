from __future__ import annotations

from ipaddress import IPv6Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.web.addresses import embedded, refusal

PUBLIC = ["8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "11.0.0.1"]
PUBLIC += ["2606:2800:220:1:248:1893:25c8:1946", "2a00:1450:4001::200e", "64:ff9b::808:808", "2002:808:808::1"]
PUBLIC += ["::ffff:8.8.8.8"]
PRIVATE = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "127.255.255.254", "100.64.0.1"]
PRIVATE += ["::1", "fd00::1", "fc00::", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::"]
PRIVATE += ["64:ff9b::7f00:1", "64:ff9b::a00:1", "::ffff:0:127.0.0.1", "2a00::5efe:192.168.0.1", "2a00::200:5efe:a00:1"]
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1"]
NEVER += ["198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"]
NEVER += ["168.63.129.16", "::", "fe80::1", "fec0::1", "ff02::1", "2001::1", "2001:db8::1", "3fff::1", "5f00::1"]
NEVER += [
    "100::1",
    "64:ff9b:1::1",
    "::ffff:169.254.169.254",
    "2002:a9fe:a9fe::",
    "64:ff9b::a9fe:a9fe",
    "fd00:ec2::254%eth0",
]
NEVER += ["2620:4f:8000::1", "no address", "127.1", "0x7f000001", "2130706433", "[::1]"]


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize("address", PRIVATE)
def test_private_networks_are_the_operators_decision(address: str) -> None:
    why = refusal(address)
    assert why is not None and "private network or to this machine" in why
    assert refusal(address, allow_private=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_what_is_never_reached(address: str) -> None:
    assert refusal(address) is not None
    assert refusal(address, allow_private=True) is not None


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_nothing_passes_that_python_knows_as_special(address: object) -> None:
    parsed = ip_address(str(address))
    if isinstance(parsed, IPv6Address):
        parsed = embedded(parsed) or parsed
    if refusal(str(address)) is None:
        assert parsed.is_global and not parsed.is_multicast
