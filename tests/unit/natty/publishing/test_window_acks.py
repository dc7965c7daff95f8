"""Acks that came together are checked together: with the same result as one by one."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from natty.publishing.publisher import _are_acks

ACK = {"stream": "ORDERS", "seq": 7}
OTHERS = [
    ACK | {"duplicate": True},
    ACK | {"stream": "OTHER"},
    ACK | {"domain": "hub"},
    {"error": {"code": 429, "err_code": 10167, "description": "too many requests"}},
    {"stream": "ORDERS", "seq": 7, "error": {"code": 400}},
]
ANSWERS = [json.dumps(one, separators=(",", ":")).encode() for one in (ACK, ACK | {"seq": 123456}, *OTHERS)]
WRONG = [
    b"",
    b"}",
    ANSWERS[0][:20] + ANSWERS[0],
    b"7}",
    b"{}",
    b"not JSON",
    ANSWERS[0][:-1],
    ANSWERS[0] + b"}",
    ANSWERS[0] * 2,
]


def is_ack(payload):
    try:
        answer = json.loads(payload)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("stream") == "ORDERS" and not answer.keys() & {"error", "duplicate"}


@example([ANSWERS[0], ANSWERS[0][:-1], ANSWERS[0] + b"}"])
@given(st.lists(st.sampled_from([*ANSWERS[:2] * 6, *ANSWERS, *WRONG]), min_size=1, max_size=8))
def test_answers_together_are_acks_if_each_one_is(payloads):
    assert _are_acks(payloads, "ORDERS") == all(map(is_ack, payloads))
