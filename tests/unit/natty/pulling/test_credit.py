from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natty.pulling.pull import Credit, size_of
from natty.pulling.requests import Request

MIB = 1024 * 1024


class PlainServer:
    """Serves requests as nats-server does: one message of each in turn, and a word about how it ended."""

    def __init__(self, sizes, credit):
        self.backlog = deque(sizes)
        self.credit = credit
        self.requests = deque()
        self.alone = False

    def take(self, request):
        self.alone = request.max_bytes == 0
        self.requests.append([request.batch, request.max_bytes or float("inf")])

    def serve(self):
        """Deliver one message; return its size, None if no request is open or the backlog is empty."""
        while self.requests and self.backlog:
            batch, room = self.requests.popleft()
            size = self.backlog[0]
            if size > room:
                self.credit.end_request(batch, room, too_small=True)
                continue
            self.backlog.popleft()
            self.credit.hold(1, size)
            if size == room or batch == 1:
                if size < room < float("inf"):
                    self.credit.end_request(0, room - size)
            else:
                self.requests.append([batch - 1, room - size])
            return size
        return None


@given(
    sizes=st.lists(st.integers(1, 3000), max_size=60),
    max_messages=st.integers(1, 20),
    max_bytes=st.integers(1, 4000),
    limits=st.tuples(st.integers(-1, 5), st.integers(-1, 2000)),
    pace=st.lists(st.integers(0, 5), min_size=1),
    exact=st.booleans(),
)
def test_everything_comes_and_the_bounds_hold_whatever_the_sizes_and_the_pace(
    sizes, max_messages, max_bytes, limits, pace, exact
):
    credit = Credit(max_messages, max_bytes)
    credit.limit(*limits)
    server, held, turns = PlainServer(sizes, credit), deque(), 0
    while server.backlog or held:
        turns += 1
        assert turns < 2000, f"stuck: {credit!r}, {server.requests}"
        asked = 0
        while request := credit.request():
            asked += 1
            assert asked < 100
            assert 1 <= request.batch <= (limits[0] if limits[0] > 0 else max_messages)
            assert request.max_bytes <= (limits[1] if limits[1] > 0 else max_bytes)
            assert request.max_bytes > 0 or not (held or server.requests)
            server.take(request)
        for _ in range(pace[turns % len(pace)] or 1):
            if (size := server.serve()) is not None:
                held.append(size)
        assert len(held) == credit.held_messages <= max_messages
        assert credit.asked_messages + credit.held_messages <= max_messages
        assert sum(held) == credit.held_bytes
        assert server.alone or credit.held_bytes + credit.asked_bytes <= max_bytes
        for _ in range(min(len(held), pace[-turns % len(pace)] or not (server.requests and server.backlog))):
            size = held.popleft()
            credit.finish(1, size if exact else None)
    assert (credit.held_messages, credit.held_bytes) == (0, 0)


def test_small_messages_are_asked_for_again_when_a_third_is_finished_while_requests_are_open():
    credit = Credit(3000, 30 * MIB)
    assert credit.request() == Request(3000, 10 * MIB)
    assert credit.request() is None
    credit.hold(1000, 200_000)
    credit.finish(999)
    assert credit.request() is None
    credit.finish(1)
    assert credit.request() == Request(1000, 10 * MIB)
    assert credit.request() is None


def test_large_messages_leave_room_for_the_next_request():
    credit = Credit(3000, 30 * MIB)
    credit.request()
    credit.hold(10, 10 * MIB)  # all that the request may bring
    assert credit.asked_messages == 0
    assert credit.request() == Request(20, 10 * MIB)  # not 2990, which would keep others out
    assert credit.request() == Request(20, 10 * MIB)
    assert credit.request() is None


def test_what_is_left_of_a_request_may_be_asked_for_again():
    credit = Credit(300, 3000)
    credit.request()
    credit.hold(100, 500)
    credit.finish(100)
    credit.end_request(200, 500)
    assert (credit.asked_messages, credit.asked_bytes) == (0, 0)
    assert credit.request() == Request(300, 1000)


def test_a_message_larger_than_all_credit_is_asked_for_alone_once_everything_is_finished():
    credit = Credit(100, 900)
    assert credit.request() == Request(100, 300)
    credit.hold(1, 200)
    credit.end_request(99, 100, too_small=True)
    assert credit.request() == Request(7, 700)  # larger than 100: all that is free
    credit.end_request(7, 700, too_small=True)
    assert credit.request() is None  # one is unfinished
    credit.finish(1)
    assert credit.request() == Request(9, 900)
    credit.end_request(9, 900, too_small=True)
    assert credit.request() == Request(1, 0)
    assert credit.request() is None
    credit.hold(1, 50_000)
    assert credit.request() is None
    credit.finish(1)
    assert credit.request().max_bytes > 0


def test_the_consumers_own_limits_are_kept_and_its_requests_overlap():
    credit = Credit(1000, 9 * MIB)
    credit.limit(10, 5000)
    requests = []
    while request := credit.request():
        requests.append(request)
    assert requests == [Request(10, 5000)] * 3
    credit.hold(10, 1000)
    assert credit.request() == Request(10, 5000)  # unfinished ones don't count for the consumer's limit


def test_a_message_larger_than_the_consumers_own_limit_is_not_asked_for_over_and_over():
    credit = Credit(100, 30_000)
    credit.limit(0, 2000)
    credit.request()
    credit.hold(1, 500)
    credit.end_request(99, 1500, too_small=True)
    assert credit.request() == Request(8, 2000)
    credit.end_request(8, 2000, too_small=True)
    assert credit.request() is None
    credit.finish(1)
    assert credit.request() == Request(1, 0)


def test_an_early_message_that_is_finished_without_its_size_counts_as_the_oldest():
    credit = Credit(100, 1000)
    credit.request()
    credit.hold(1, 100)
    credit.hold(4, 40)
    credit.finish(1)
    assert credit.held_bytes == 40
    credit.finish(2)
    assert credit.held_bytes == 20
    credit.finish(1, 13)
    assert credit.held_bytes == 7
    credit.finish(1)
    assert credit.held_bytes == 0


def test_messages_of_a_forgotten_request_count_as_held_and_not_as_asked_for():
    credit = Credit(100, 10_000)
    credit.request()
    credit.forget()
    credit.request()
    before = credit.asked_messages
    credit.hold(5, 500, asked=False)
    assert (credit.asked_messages, credit.held_messages, credit.held_bytes) == (before, 5, 500)
    assert not credit.fits(1, 1)  # all messages are spoken for
    credit.finish(5)
    credit.forget()
    assert credit.fits(100, 10_000)
    assert not credit.fits(101, 1)
    assert not credit.fits(1, 10_001)


@pytest.mark.parametrize("end", [(0, 5000), (5, 0)])
def test_a_request_that_ends_without_a_word_leaves_nothing_behind(end):
    credit = Credit(10, 30_000)
    assert credit.request() == Request(10, 10_000)
    credit.hold(10 - end[0], 10_000 - end[1])
    assert (credit.asked_messages, credit.asked_bytes) == (0, 0)


def test_a_size_is_what_the_server_counts():
    assert (
        size_of([(b"orders.eu", b"$JS.ACK.s.d.1.1.1.1.0", b"NATS/1.0\r\n\r\n", b"abc"), (b"a", b"b", b"", b"")]) == 47
    )


@pytest.mark.parametrize("too_small", [False, True])
def test_required_messages_are_requested_beyond_the_bounds_when_nothing_else_is_requested(too_small):
    credit = Credit(10, 3000)
    assert credit.request() == Request(10, 1000)
    credit.hold(8, 400)
    assert credit.request(2) is None  # the request is still open
    credit.end_request(2, 600, too_small=too_small)
    assert credit.request() is None
    assert credit.request(2) == Request(2, 0)
    assert credit.request(2) is None
    credit.hold(2, 5000)
    assert (credit.asked_messages, credit.held_messages) == (0, 10)
    assert credit.request(30) == Request(30, 0)
    credit.end_request(30, 0)
    credit.finish(10)
    assert credit.request(2).max_bytes > 0


def test_required_messages_are_requested_when_bytes_are_scarce():
    credit = Credit(100, 3000)
    credit.hold(20, 2500, asked=False)
    assert credit.request() is None
    assert credit.request(2) == Request(2, 0)


def test_required_messages_are_requested_within_all_bounds_if_there_is_room():
    credit = Credit(300, 3000)
    credit.limit(20, 0)
    assert credit.request(1) == Request(20, 1000)


def test_the_consumers_own_limit_also_holds_for_required_messages():
    credit = Credit(300, 3000)
    credit.limit(20, 0)
    credit.hold(299, 299, asked=False)
    assert credit.request(50) == Request(20, 0)


def test_a_required_request_is_open_until_its_messages_came_however_large_they_are():
    credit = Credit(100, 4096)
    credit.request()
    credit.hold(4, 4096)
    assert credit.request() is None
    assert credit.request(3) == Request(3, 0)
    credit.hold(1, 5 * 4096)
    assert credit.request(2) is None
    assert not credit.fits(1, 1)
    credit.end_request(2, 0)
    assert credit.request(2) == Request(2, 0)


def test_messages_larger_than_the_consumers_own_limit_are_asked_for_alone_after_the_first_one():
    credit = Credit(100, 30_000)
    credit.limit(0, 2000)
    first = credit.request()
    credit.end_request(first.batch, first.max_bytes, too_small=True)
    for _ in range(3):
        assert credit.request() == Request(1, 0)
        credit.hold(1, 5000)
        assert credit.request() is None
        credit.finish(1)
    assert credit.request() == Request(1, 0)
    credit.hold(1, 100)
    assert credit.request().max_bytes == 2000


@pytest.mark.parametrize("most", [1, 2])
def test_one_request_is_open_at_a_time_if_the_consumer_allows_fewer_than_overlap(most):
    credit = Credit(30, 3000)
    credit.limit(0, 0, most)
    assert credit.request() == Request(30, 1000)
    credit.hold(10, 500)
    credit.finish(10)
    assert credit.request() is None  # the rest of the first is open
    credit.hold(20, 300)
    assert credit.request() is not None


def test_the_late_status_of_a_complete_request_leaves_the_next_one_open_if_only_one_may_be():
    credit = Credit(30, 3000)
    credit.limit(0, 0, 1)
    first = credit.request()
    credit.hold(first.batch, 600)
    credit.finish(first.batch)
    second = credit.request()
    credit.end_request(0, first.max_bytes - 600)
    assert (credit.asked_messages, credit.asked_bytes) == (second.batch, second.max_bytes)
