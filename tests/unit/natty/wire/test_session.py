import json
from types import SimpleNamespace

import pytest

from natty.config.settings import Config
from natty.errors import AuthorizationError, SessionEndedError
from natty.wire.read_pauses import ReadPauses
from natty.wire.session import ProtocolError, Session, decode_info


@pytest.mark.parametrize("count", [1, 3])
def test_the_same_on_several_subjects_is_on_the_wire_as_one_message_after_the_other(count, session):
    subjects = [b"$JS.ACK.S.C.1.%d.1.0.0" % number for number in range(count)]
    session.publish([(subject, b"", b"", b"+ACK") for subject in subjects])
    session.publish_to_each(subjects, b"+ACK")
    assert session.written[0].replace(b"  ", b" ") == session.written[1]  # one is blank for a reply that is not there
    assert session.written[0].count(b"+ACK") == count


@pytest.mark.parametrize("count", [1, 4])
def test_numbered_messages_are_on_the_wire_as_messages_with_these_replies(count, session):
    rows = [(b"a", b"", b"1"), (b"b%d", b"NATS/1.0\r\nA: %d\r\n\r\n", b"%b"), (b"c", b"", b""), (b"d", b"", b"\r\n")]
    messages = [SimpleNamespace(subject=one, headers=head, data=data) for one, head, data in rows[:count]]
    session.publish([(one, b"I%%.%d.1" % n, head, data) for n, (one, head, data) in enumerate(rows[:count], 7)])
    session.publish_numbered(messages, b"I%%.%d.1", 7)
    assert session.written[0] == session.written[1]
    first = b"PUB a I%.7.1 1\r\n1\r\n"
    second = b"HPUB b%d I%.8.1 19 21\r\nNATS/1.0\r\nA: %d\r\n\r\n%b\r\n"
    rest = b"PUB c I%.9.1 0\r\n\r\nPUB d I%.10.1 2\r\n\r\n\r\n"
    assert session.written[0] == (first if count == 1 else first + second + rest)


def test_an_info_that_is_not_a_json_object_is_a_protocol_error():
    assert decode_info(b' {"version": "2.15.1"}') == {"version": "2.15.1"}
    for text in (b"nonsense", b"[]"):
        with pytest.raises(ProtocolError, match="not JSON"):
            decode_info(text)


@pytest.fixture
async def session():
    """A session without a socket, and lists of what it reports and writes."""
    ends, notices, written = [], [], []
    one = Session(Config(), lambda sid, messages: None, ends.append, notices.append, ReadPauses())
    one.ends, one.notices, one.written, one._write = ends, notices, written, written.append
    return one


async def test_a_ping_of_the_server_is_answered(session):
    session._parser.feed(b"PING\r\n")
    assert session.written == [b"PONG\r\n"]


@pytest.mark.parametrize("text", ["User Authentication Expired", "Authorization Violation", "Account Auth Expired"])
async def test_refused_credentials_end_the_session_as_such(session, text):
    session._parser.feed(b"-ERR '%b'\r\n" % text.encode())
    assert [type(error) for error in session.ends] == [AuthorizationError]
    assert text in str(session.ends[0])


@pytest.mark.parametrize("text", ["Maximum Payload Violation", "Stale Connection", "maximum connections exceeded"])
async def test_any_other_error_ends_the_session_once(session, text):
    session._parser.feed(b"-ERR '%b'\r\n-ERR 'again'\r\n" % text.encode())
    assert [type(error) for error in session.ends] == [SessionEndedError]


async def test_a_refused_subject_does_not_end_the_session(session):
    session._parser.feed(b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n")
    assert (session.ends, len(session.notices)) == ([], 1)


async def test_a_server_in_lame_duck_mode_is_left(session):
    session._parser.feed(b'INFO {"ldm": false}\r\n')
    assert session.ends == []
    session._parser.feed(b'INFO {"ldm": true}\r\n')
    assert "lame duck" in str(session.ends[0])


@pytest.mark.parametrize("names", [["10.0.0.2:4222", 7, "b:1"], "10.0.0.2:4222", None])
async def test_other_servers_are_taken_from_what_the_server_says_in_the_session(session, names):
    session._parser.feed(b'INFO {"connect_urls": %b}\r\n' % json.dumps(names).encode())
    assert session.discovered == (["10.0.0.2:4222", "b:1"] if isinstance(names, list) else [])


async def test_a_cancelled_ping_takes_its_answer_with_it(session):
    session._over = False
    first, second = session.ping(), session.ping()
    first.send(None)
    second.send(None)
    first.close()  # cancelled, as by a timeout
    session._parser.feed(b"PONG\r\n")
    assert not session._answers[0].done()  # the second one's answer is still to come
    session._parser.feed(b"PONG\r\n")
    with pytest.raises(StopIteration):
        second.send(None)


async def test_messages_of_one_turn_are_joined_into_one_write(session):
    session.publish([(b"a", b"", b"", b"1"), (b"b", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", b"2")])
    assert session.written == [b"PUB a  1\r\n1\r\nHPUB b r 18 19\r\nNATS/1.0\r\nA: b\r\n\r\n2\r\n"]
