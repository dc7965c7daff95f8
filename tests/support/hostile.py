"""Subjects and headers that the server accepts, and that no careful client would publish."""

import asyncio

from patient import PATIENCE

TAILS = (
    b"\xff\xfe",  # not UTF-8
    b"\xed\xa0\x80",  # a lone surrogate, encoded
    b"a\x1b[2J\x1b]0;title\x07",  # control sequences of terminals
    b"a\x00b",
    b"a\xc2\x9b31m",  # C1
    b"a\xe2\x80\x83b",  # a blank that is not ASCII
    b"a.*",
    b"[red]x",
    b"\xef\xbf\xbd",  # replaces bytes that are not UTF-8 in the server's answers
)
HEADERS = b"NATS/1.0\r\nNats-Msg-Id: \xff%d\r\nX-\xfe: \xff \x1b[31m\r\nOdd\nName: two\nlines\r\n\r\n"

MALFORMED = (
    b"NATS/1.0\r\nA: bcd",
    b"NATS/1.0\r\nA: bcd\r\n",
    b"NATS/1.0\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 3xx",
    b"NATS/1.0\r\nNats-Pin-Id: of another stream\r\nA: b",
    b"NATS/1.0\r\nNats-Subject: another\r\nNats-Stream: another\r\nA: b",
    b"NATS/1.0",
    b"no headers at all",
)
"""Header blocks that do not end as they should: the server stores them, and appends its own headers to them."""


async def publish_raw(natty, subject, data=b"x", headers=b""):
    """Publish on a subject of these bytes, and return the stream's sequence."""
    reply, answer = natty.connection.expect_answer()
    natty.connection.put((subject, reply, headers, data))
    async with asyncio.timeout(PATIENCE):
        stored = (await answer)[3]
    return int(stored.partition(b'"seq":')[2].partition(b"}")[0].partition(b",")[0])


async def fill_hostile(natty, stream, prefix=b"", tails=TAILS):
    """Publish one message on each hostile subject of a stream; return the subjects in order."""
    subjects = [b"%b.%b%b" % (stream.encode(), prefix, tail) for tail in tails]
    for number, subject in enumerate(subjects):
        await publish_raw(natty, subject, b"%d" % number, HEADERS % number)
    return subjects
