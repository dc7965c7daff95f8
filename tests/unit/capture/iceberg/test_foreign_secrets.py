"""What a sentence about the user's catalog may repeat of another program's text."""

import base64
import urllib.parse

import pytest
import requests
from pyiceberg.catalog.rest.response import TokenResponse
from sqlalchemy import create_engine

from capture.errors import CatalogAwayError, CatalogError
from capture.iceberg.foreign import Address, translate_errors

SECRET = "p+ss/w@rd"


def encode(text):
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"token": SECRET}, f"Authorization: Bearer {SECRET}"),
        ({"credential": f"me:{SECRET}"}, f"client_id=me&client_secret={urllib.parse.quote_plus(SECRET)}&scope=catalog"),
        ({"credential": f"me:{SECRET}"}, f"Basic {encode(f'me:{SECRET}')}"),
        ({"uri": f"postgresql://me:{urllib.parse.quote(SECRET, safe='')}@host/db"}, f"no user me with {SECRET}"),
        ({"uri": f"postgresql://me:{SECRET}@host/db"}, f"can't parse postgresql://me:{SECRET}@host/db"),
        ({"uri": f"mysql://host/db?password={urllib.parse.quote(SECRET)}"}, f"refused {SECRET}"),
        ({"header.X-Api": SECRET}, f"X-Api: {SECRET}"),
        ({"glue.secret-access-key": SECRET}, f"it is '{SECRET}'"),
        ({}, f"x-amz-security-token:{encode(SECRET)}/and more host:glue"),
        ({}, f'{{"access_token": "{SECRET}"}}'),
        ({}, f"Bearer {encode(SECRET * 2)}"),
    ],
)
def test_no_secret_in_any_form_is_repeated(properties, text):
    address = Address("rest", "default", properties)
    with pytest.raises(CatalogError) as raised, translate_errors(address):
        raise ValueError(text)
    for form in (SECRET, "p+ss", "w@rd", urllib.parse.quote_plus(SECRET), encode(SECRET)[:10], encode(f"me:{SECRET}")):
        assert form not in str(raised.value)
        assert form not in str(address)
    assert "***" in str(raised.value)


def test_an_answer_that_is_not_as_it_should_names_the_fields_and_shows_no_value():
    said = "is not as the protocol says, in access_token, token_type"
    with pytest.raises(CatalogError, match=said) as raised, translate_errors(Address("rest", "default", {})):
        TokenResponse.model_validate_json('{"access_token": ["of a server"], "token_type": 5}')
    assert "of a server" not in str(raised.value)


def test_an_sql_driver_repeats_no_password_of_the_uri(tmp_path):
    uri = f"sqlite:///{tmp_path}/not/there.db?password={SECRET}"
    address = Address("sql", "default", {"uri": uri})
    with pytest.raises(CatalogAwayError, match="unable to open") as raised, translate_errors(address):
        create_engine(f"sqlite:///{tmp_path}/not/there.db").connect()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("before", range(270, 300, 5))
def test_no_part_of_a_secret_is_left_where_a_text_is_cut_off(before):
    address = Address("rest", "default", {"token": "of a catalog alone"})
    assert "of a" not in address.quote(ValueError("x" * before + "of a catalog alone"))


def test_a_text_of_other_programs_is_one_line_of_limited_length_without_control_characters():
    with pytest.raises(CatalogError) as raised, translate_errors(Address("rest", "default", {})):
        raise ValueError("\x1b[31mred\r\nINFO forged\x9b2J" + "x" * 10_000)
    assert str(raised.value).isprintable()
    assert "red INFO forged?2J" in str(raised.value)
    assert len(str(raised.value)) < 400


def test_an_http_client_that_gives_up_says_the_reason_alone():
    said = r"does not answer: Failed to establish a new connection: \[Errno \d+\] [\w ]+$"
    with pytest.raises(CatalogAwayError, match=said), translate_errors(Address("rest", "default", {})):
        requests.get("http://127.0.0.1:1", timeout=5)
