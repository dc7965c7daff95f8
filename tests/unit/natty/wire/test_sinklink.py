import json
import ssl

import pytest
from nats.aio.client import Client

from natty.config.settings import Config
from natty.errors import AuthorizationError, SessionEndedError, TLSError
from natty.wire import session
from natty.wire.parser import ProtocolError
from natty.wire.session import SinkLink, decode_info, sink_path_fault, stock_options


async def test_the_sink_path_agrees_with_the_installed_nats_py():
    assert await sink_path_fault() == ""


async def test_a_method_that_a_later_nats_py_has_no_more_is_named(monkeypatch):
    monkeypatch.delattr(Client, "_connect_command")
    assert await sink_path_fault() == "nats-py's client has no _connect_command() any more"


@pytest.mark.parametrize("name", ["_server_info", "_server_pool", "_current_server", "_transport", "_reading_task"])
async def test_a_client_of_which_an_attribute_has_another_name_is_not_trusted(name, monkeypatch):
    class Renamed(Client):
        def __init__(self):
            super().__init__()
            delattr(self, name)

    monkeypatch.setattr("natty.wire.session.Client", Renamed)
    assert await sink_path_fault() == f"nats-py's Renamed has no {name} any more"


async def test_a_stock_parser_that_reads_other_messages_is_noticed(monkeypatch):
    class Other(session.StockParser):
        async def parse(self, data=b""):
            await super().parse(data.replace(b"hello", b"HELLO"))

    monkeypatch.setattr(session, "StockParser", Other)
    same_count = b"MSG a 1 5\r\nhello\r\n" * 5
    monkeypatch.setattr(session, "_SELF_TEST", same_count)
    assert "different messages" in await sink_path_fault()


async def test_a_stock_parser_that_fails_is_noticed(monkeypatch):
    def fails(recorder):
        raise TypeError("Parser() takes no arguments")

    monkeypatch.setattr(session, "StockParser", fails)
    assert "the self-test failed: TypeError" in await sink_path_fault()


@pytest.mark.parametrize("count", [1, 3])
def test_the_same_on_several_subjects_is_on_the_wire_as_one_message_after_the_other(count):
    link, written = SinkLink(Config()), []
    link._write = written.append
    subjects = [b"$JS.ACK.S.C.1.%d.1.0.0" % number for number in range(count)]
    link.publish([(subject, b"", b"", b"+ACK") for subject in subjects])
    link.publish_to_each(subjects, b"+ACK")
    assert written[0].replace(b"  ", b" ") == written[1]  # one is blank for a reply that is not there
    assert written[0].count(b"+ACK") == count


def test_an_info_that_is_no_json_object_is_a_protocol_error():
    assert decode_info(b' {"version": "2.15.1"}') == {"version": "2.15.1"}
    for text in (b"nonsense", b"[]"):
        with pytest.raises(ProtocolError, match="no JSON"):
            decode_info(text)


def test_nats_py_never_reconnects_by_itself_and_verifies_the_server(natty_tls):
    files = {"tls_ca": str(natty_tls.ca), "tls_cert": str(natty_tls.client_cert), "tls_key": str(natty_tls.client_key)}
    options = stock_options(Config(**files), "tls://db.example:4222")
    assert options["allow_reconnect"] is False
    assert (options["tls"].verify_mode, options["tls"].check_hostname) == (ssl.CERT_REQUIRED, True)
    assert options["tls_hostname"] == "db.example"
    assert stock_options(Config(**files, tls_hostname="other"), "tls://db.example:1")["tls_hostname"] == "other"


def test_without_tls_no_context_is_made():
    assert "tls" not in stock_options(Config(), "nats://a:1")


def test_a_missing_ca_file_is_named():
    with pytest.raises(TLSError, match=r"nowhere\.pem"):
        stock_options(Config(tls_ca="/nowhere.pem"), "tls://a:1")


@pytest.fixture
async def link():
    """A link that has no socket; what it says in the end."""
    one = SinkLink(Config())
    one.ends, one.notices, one.written = [], [], []
    one.on_end, one.on_notice, one._write = one.ends.append, one.notices.append, one.written.append
    return one


async def test_a_ping_of_the_server_is_answered(link):
    link._feed(b"PING\r\n")
    assert link.written == [b"PONG\r\n"]


@pytest.mark.parametrize("text", ["User Authentication Expired", "Authorization Violation", "Account Auth Expired"])
async def test_refused_credentials_end_the_session_as_such(link, text):
    link._feed(b"-ERR '%b'\r\n" % text.encode())
    assert [type(error) for error in link.ends] == [AuthorizationError]
    assert text in str(link.ends[0])


@pytest.mark.parametrize("text", ["Maximum Payload Violation", "Stale Connection", "maximum connections exceeded"])
async def test_any_other_error_ends_the_session_once(link, text):
    link._feed(b"-ERR '%b'\r\n-ERR 'again'\r\n" % text.encode())
    assert [type(error) for error in link.ends] == [SessionEndedError]


async def test_a_refused_subject_does_not_end_the_session(link):
    link._feed(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n")
    assert (link.ends, len(link.notices)) == ([], 1)


async def test_a_server_in_lame_duck_mode_is_left(link):
    link._feed(b'INFO {"ldm": false}\r\n')
    assert link.ends == []
    link._feed(b'INFO {"ldm": true}\r\n')
    assert "lame duck" in str(link.ends[0])


@pytest.mark.parametrize("names", [["10.0.0.2:4222", 7, "b:1"], "10.0.0.2:4222", None])
async def test_other_servers_are_taken_from_what_the_server_says_in_the_session(link, names):
    link._feed(b'INFO {"connect_urls": %b}\r\n' % json.dumps(names).encode())
    assert link.discovered == (["10.0.0.2:4222", "b:1"] if isinstance(names, list) else [])


async def test_a_cancelled_ping_takes_its_answer_with_it(link):
    link._over = False
    first, second = link.ping(), link.ping()
    first.send(None)
    second.send(None)
    first.close()  # cancelled, as by a timeout
    link._feed(b"PONG\r\n")
    assert not link._answers[0].done()  # the second one's answer is still to come
    link._feed(b"PONG\r\n")
    with pytest.raises(StopIteration):
        second.send(None)


async def test_messages_of_one_turn_are_joined_into_one_write(link):
    link.publish([(b"a", b"", b"", b"1"), (b"b", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"2")])
    assert link.written == [b"PUB a  1\r\n1\r\nHPUB b r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\n2\r\n"]
