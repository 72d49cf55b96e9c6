"""The driver's published address: what is signed, with which keys, and what is refused."""

import json
from urllib.parse import urlsplit

import pytest

from howdah.errors import NotFound
from howdah.jobs.backend import DriverAddress
from howdah.jobs.net.signing import new_key
from howdah.yarn import address

APP = "application_1_0001"


def test_an_address_is_read_only_with_its_secret_and_as_its_attempts(tmp_path):
    directory, secret, nonce = str(tmp_path), new_key(), address.new_nonce()
    driver = DriverAddress("10.0.0.1", 4711, address.session_key(secret, nonce))
    with pytest.raises(NotFound):
        address.read(directory, APP, 2, secret)
    address.publish(directory, APP, 2, driver, secret, nonce)
    assert address.read(directory, APP, 2, secret) == driver
    assert address.attempts(directory, APP) == [2]
    assert address.attempts(directory, "application_1_000") == []
    assert address.attempts(str(tmp_path / "none"), APP) == []

    signed = (tmp_path / f"driver-{APP}-2.json").read_bytes()
    (tmp_path / f"driver-{APP}-3.json").write_bytes(signed)
    for number, key in ((2, new_key()), (3, secret)):
        with pytest.raises(ValueError, match="not signed by this job"):
            address.read(directory, APP, number, key)
    for altered in (
        signed.replace(b"10.0.0.1", b"10.0.0.2"),
        signed.replace(b'"seal": "', b'"seal": "\\u00c3'),
        b"[]",
        b"{}",
    ):
        (tmp_path / f"driver-{APP}-2.json").write_bytes(altered)
        with pytest.raises(ValueError, match="signed"):
            address.read(directory, APP, 2, secret)


@pytest.mark.parametrize(
    ("host", "text"), [("10.0.0.1", "10.0.0.1:80"), ("fd00::2", "[fd00::2]:80")]
)
def test_a_url_can_be_made_of_an_address(host, text):
    url = urlsplit(f"http://{DriverAddress(host, 80, 'key').host_port}/page/")
    assert (url.netloc, url.hostname, url.port) == (text, host, 80)


def test_the_derived_keys_are_those_of_rfc_5869():
    # Test cases 1 and 3 of its appendix A, the first 32 bytes.
    secret = bytes([0x0B]) * 22
    one = address._hkdf(secret, bytes(range(0x0D)), bytes(range(0xF0, 0xFA)))
    assert one.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    three = address._hkdf(secret, b"", b"")
    assert three.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_a_session_key_needs_both_the_secret_and_the_nonce():
    secret, nonce = new_key(), address.new_nonce()
    key = address.session_key(secret, nonce)
    assert key == address.session_key(secret, nonce)
    others = {
        address.session_key(new_key(), nonce),
        address.session_key(secret, address.new_nonce()),
        secret,
        nonce,
        json.loads(address._signed(secret, "driver", {"nonce": nonce}))["seal"],
    }
    assert len(others | {key}) == 6
    for bad in ("", nonce[2:], "no hexadecimal"):
        with pytest.raises(ValueError):
            address.session_key(secret, bad)
