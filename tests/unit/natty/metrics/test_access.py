"""Who may ask a page: tokens in each form, names, and a certificate that is replaced."""

import base64
import logging

import pytest

from natty.config.tls import DevCA
from natty.errors import ConfigError
from natty.metrics.access import Certificate, Hosts, Tokens

TOKEN = "0123456789abcdef"


def basic(text):
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_a_token_of_sixteen_characters_is_long_enough_and_a_shorter_one_is_not():
    assert Tokens([TOKEN]).admit(f"Bearer {TOKEN}")
    with pytest.raises(ConfigError, match="16 characters"):
        Tokens([TOKEN, TOKEN[:-1]])


@pytest.mark.parametrize(("shown", "admitted"), [(f"any:{TOKEN}", True), (TOKEN, False), (f"any:{TOKEN}x", False)])
def test_a_password_is_a_token_only_where_that_is_said(shown, admitted):
    assert Tokens([TOKEN]).admit(basic(shown), basic=True) is admitted
    assert not Tokens([TOKEN]).admit(basic(shown))


def test_a_password_among_characters_that_are_not_of_base64_is_refused():
    shown = basic(f"any:{TOKEN}")
    assert not Tokens([TOKEN]).admit(f"{shown[:10]}!*{shown[10:]}", basic=True)


def test_no_token_at_all_admits_nobody():
    assert not Tokens([]).admit("Bearer ")
    assert not Tokens([TOKEN]).admit("")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "localhost.", "localhost:8180", "127.0.0.1", "[::1]:1", ""])
def test_a_name_of_this_machine_is_answered_in_each_spelling(name):
    assert Hosts.of("localhost", [], has_tokens=False).admit(name)


def test_a_certificate_that_can_not_be_used_is_warned_of_once_and_taken_when_it_can(tmp_path, caplog):
    files = DevCA.create().write(tmp_path / "tls")
    certificate = Certificate(files.server_cert, files.server_key)
    good = files.server_cert.read_bytes()
    files.server_cert.write_text("no certificate")
    for _ in range(3):
        certificate.refresh()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    files.server_cert.write_bytes(good)
    with caplog.at_level(logging.INFO, "natty.access"):
        for _ in range(3):
            certificate.refresh()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
