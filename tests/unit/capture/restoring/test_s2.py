import contextlib
import io

import cramjam
import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.errors import FormatError
from capture.restoring.s2 import LARGEST_BLOCK, _step_by_step, decompress, unpack

IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"


def number(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class Steps:
    """Writes steps of S2 as its description has them, and does, byte by byte, what they say."""

    def __init__(self):
        self.code, self.data, self.back = bytearray(), bytearray(), 0

    def literal(self, text):
        length = len(text) - 1
        if length < 60:
            self.code.append(length << 2)
        else:
            more = (length.bit_length() + 7) // 8
            self.code += bytes([(59 + more) << 2]) + length.to_bytes(more, "little")
        self.code += text
        self.data += text

    def copy(self, back, length, wide):
        back = 1 + (back - 1) % len(self.data)
        if back < 2048 and 4 <= length <= 11 and not wide:
            self.code += bytes([(back >> 8) << 5 | (length - 4) << 2 | 1, back & 255])
        elif back < 1 << 16:
            length = min(length, 64)
            self.code += bytes([(length - 1) << 2 | 2]) + back.to_bytes(2, "little")
        else:
            length = min(length, 64)
            self.code += bytes([(length - 1) << 2 | 3]) + back.to_bytes(4, "little")
        self.back = back
        self._do(length)

    def repeat(self, length):
        if length < 9:
            length = max(4, length)
            self.code += bytes([(length - 4) << 2 | 1, 0])
        elif length < 8 + 256:
            self.code += bytes([5 << 2 | 1, 0, length - 8])
        elif length < 4 + 256 + 65_536:
            self.code += bytes([6 << 2 | 1, 0]) + (length - 260).to_bytes(2, "little")
        else:
            self.code += bytes([7 << 2 | 1, 0]) + (length - 65_540).to_bytes(3, "little")
        self._do(length)

    def _do(self, length):
        for _ in range(length):
            self.data.append(self.data[-self.back])

    @property
    def block(self):
        return number(len(self.data)) + bytes(self.code)


STEP = st.one_of(
    st.tuples(st.just("literal"), st.binary(min_size=1, max_size=300)),
    st.tuples(st.just("copy"), st.integers(1, 70_000), st.integers(1, 64), st.booleans()),
    st.tuples(st.just("repeat"), st.integers(4, 70_000)),
)


@given(st.lists(STEP, max_size=30), st.integers(1, 70_000))
def test_every_step_does_what_its_description_says(steps, first):
    written = Steps()
    written.literal(bytes(index * 7 & 255 for index in range(first)))
    for name, *arguments in steps:
        if name == "repeat" and not written.back:
            written.copy(1, 4, False)
        if len(written.data) < LARGEST_BLOCK - 100_000:
            getattr(written, name)(*arguments)
    assert decompress(written.block) == written.data


@given(st.binary(max_size=3000), st.integers(1, 50))
def test_snappy_is_understood_by_both_ways(data, times):
    block = bytes(cramjam.snappy.compress_raw(data * times))
    assert decompress(block) == data * times
    assert _step_by_step(block, len(number(len(data * times)))) == data * times


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(block):
    with contextlib.suppress(FormatError):
        assert len(decompress(block)) <= LARGEST_BLOCK


def chunk(kind, body):
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def masked(data):
    crc = google_crc32c.value(data)
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def plain(data):
    return chunk(1, masked(data) + data)


def read(data):
    return b"".join(unpack(io.BytesIO(data)))


def test_streams_in_a_row_padding_and_an_index_are_read():
    packed = chunk(0, masked(b"ab" * 9) + bytes(cramjam.snappy.compress_raw(b"ab" * 9)))
    ours = bytes(cramjam.snappy.compress(b"xyz" * 50_000))
    data = IDENTIFIER + plain(b"one") + chunk(0xFE, b"\0" * 5) + packed + ours + IDENTIFIER + chunk(0x99, b"index")
    assert read(data) == b"one" + b"ab" * 9 + b"xyz" * 50_000
    assert read(b"") == b""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff\x06", "cut off"),
        (IDENTIFIER + plain(b"one")[:-1], "cut off"),
        (plain(b"one"), "neither S2 nor framed Snappy"),
        (chunk(0xFF, b"S9sTwO"), "neither S2 nor framed Snappy"),
        (IDENTIFIER + chunk(1, masked(b"two") + b"one"), "a checksum in it is wrong"),
        (IDENTIFIER + chunk(2, b""), "a chunk of kind 0x2, which this version does not know"),
        (IDENTIFIER + chunk(0, masked(b"") + number(LARGEST_BLOCK + 1)), "more than there may be"),
        (IDENTIFIER + chunk(0, masked(b"aaaa") + b"\x04\x01\x00"), "a block in it is damaged"),
        (IDENTIFIER + chunk(0, masked(b"aaaa")), "a block in it is damaged"),
    ],
)
def test_what_is_damaged_is_refused(data, said):
    with pytest.raises(FormatError, match=said):
        read(data)


def test_a_size_without_an_end_is_refused_at_once():
    with pytest.raises(FormatError, match="a block in it is damaged"):
        decompress(b"\xff" * (16 << 20))
