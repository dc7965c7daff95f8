"""Text from outside takes time in proportion to its length: with a pattern that backtracks, these would take hours."""

import pytest

from capture.spark.failure import sentence
from natty.config.settings import redact
from natty.config.units import parse_duration
from natty.errors import BadGroupError
from natty.groups.rules import check_partitioned
from natty.metrics.http import Request, read_head

SIZE = 16 * 1024  # twice what a server takes
TIMES = 100

LINE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
HEADS = {
    "blanks and a NUL": LINE + b"X:" + b" " * SIZE + b"\0",
    "tabs and blanks and a NUL": LINE + b"X:" + b" \t" * (SIZE // 2) + b"\0",
    "words and blanks and a NUL": LINE + b"X: " + b"a " * (SIZE // 2) + b"\0",
    "a name without an end": LINE + b"x" * SIZE,
    "blanks before the colon": LINE + b"X" + b" " * SIZE + b": y",
    "a long target and no version": b"GET http://" + b"a" * SIZE + b" HTTP/1.9\r\nHost: localhost",
    "a target of many addresses": b"GET " + b"http://" * (SIZE // 7) + b" HTTP/1.9\r\nHost: localhost",
    "a target with a NUL": b"GET /" + b"a" * SIZE + b"\0 HTTP/1.1\r\nHost: localhost",
    "a long method": b"G" * SIZE + b"( / HTTP/1.1\r\nHost: localhost",
    "blanks for a target": b"GET " + b" " * SIZE + b" HTTP/1.1\r\nHost: localhost",
    "many fields": LINE + b"X: y\r\n" * (SIZE // 6) + b"no colon",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_malformed_head_is_refused_at_once(head):
    for _ in range(TIMES):
        assert read_head(head + b"\r\n\r\n") is None


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/metrics?a=http://b/c", "/metrics"),
        (b"http://host:80/metrics?a", "/metrics"),
        (b"http://host", "/"),
        (b"http://host?a=/b", "/"),
        (b"*", "*"),
        (b"/\xe4", "/ä"),
    ],
)
def test_a_head_says_what_is_asked_for(target, path):
    head = b"GET " + target + b" HTTP/1.1\r\nHost:\t localhost \r\nX-Empty:\r\nX: a b\r\n\r\n"
    assert read_head(head) == Request(b"GET", path, {b"host": b"localhost", b"x-empty": b"", b"x": b"a b"})


@pytest.mark.timeout(120)
def test_text_of_others_is_read_in_a_moment():
    for _ in range(TIMES):
        with pytest.raises(ValueError, match="is no duration"):
            parse_duration("1" * SIZE + "x")
        assert redact("/" * SIZE) == "/" * SIZE
        assert sentence(RuntimeError(" " * SIZE)) == repr(RuntimeError(" " * SIZE))
        with pytest.raises(BadGroupError, match="holds no subject of partition 0"):
            check_partitioned("S", {"subject_transform": {"dest": "{{" * (SIZE // 2)}}, 1)
