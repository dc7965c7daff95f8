"""Arguments of the wrong type are named in a sentence at the call, before anything is sent."""

import asyncio

import pytest

from natty import BadNameError, BadSubjectError, ConfigError, Natty
from natty.groups.partitions import PartitioningFilter

CALLS = {
    "publish bytes": (lambda client: client.publish(b"a.x", b""), "the subject is b'a.x', of type bytes; write text"),
    "publish a number": (lambda client: client.publish(3, b""), "the subject is 3, of type int; write text"),
    "publish in the background": (lambda client: client.publish_async(b"a.x", b""), "the subject is b'a.x', of type"),
    "consume, swapped": (
        lambda client: client.consume("ORDERS", print, "w"),
        "the consumer's name is <built-in function print>, of type builtin_function_or_method; write text",
    ),
    "consume without a function": (
        lambda client: client.consume("ORDERS", "w", "print"),
        "the handler is 'print'; give a function that takes a message",
    ),
    "consume with text": (
        lambda client: client.consume("ORDERS", "w", print, concurrency="3"),
        "concurrency is '3'; write a whole number, 1 or more",
    ),
    "consume with a number of retries": (
        lambda client: client.consume("ORDERS", "w", print, retries=5),
        "retries is 5; write a list; each element is a number of seconds",
    ),
    "consume, misspelt": (
        lambda client: client.consume("ORDERS", "w", print, concurency=3),
        r"consume\(\) has no option concurency; did you mean concurrency",
    ),
    "consume with a setting of the consumer": (
        lambda client: client.consume("ORDERS", "w", print, filter_subjects=["orders.>"]),
        r"consume\(\) has no option filter_subjects: it is a setting of the consumer; consume\(…, consumer={",
    ),
    "pull with a setting of the consumer": (
        lambda client: client.pull("ORDERS", "w", ack_wait=5),
        r"pull\(\) has no option ack_wait: it is a setting of the consumer; .* and ensure_consumer\(…, ack_wait=…\)",
    ),
    "pull with text": (lambda client: client.pull("ORDERS", "w", expires="10s"), "expires is '10s'; write a number of"),
    "watch with text": (lambda client: client.watch("b", heartbeat="5"), "heartbeat is '5'; write a number of seconds"),
    "a key that is a number": (lambda client: client.put("b", 1, b""), "the key's name is 1; write text"),
    "a revision that is text": (lambda client: client.get("b", "k", revision="3"), "revision is '3'; write a whole"),
    "an update with a revision that is text": (
        lambda client: client.update("b", "k", b"", revision="3"),
        "revision is '3'; write a whole number, 0 or more",
    ),
    "a message at a sequence of text": (lambda client: client.get_message("S", sequence="1"), "sequence is '1'; write"),
    "a message to delete at text": (lambda client: client.delete_message("S", "1"), "sequence is '1'; write a whole"),
    "a purge that keeps text": (lambda client: client.purge_stream("S", keep="3"), "keep is '3'; write a whole number"),
    "a history that is text": (lambda client: client.create_bucket("b", history="5"), "history is '5'; write a whole"),
    "a group of text": (lambda client: client.group("S", "g").create("3"), "partitions is '3'; write a whole number"),
    "a group with filters of text": (
        lambda client: client.group("S", "g").create(3, ["orders.*:1"]),
        r"a filter is 'orders\.\*:1'; write a PartitioningFilter",
    ),
    "a static group with other filters": (
        lambda client: client.static_group("S", "g").create(3, [PartitioningFilter("a.*")]),
        "a filter is PartitioningFilter.*; write text",
    ),
    "a group without a function": (
        lambda client: client.group("S", "g").join("m", "handler"),
        "the handler is 'handler'; give a function",
    ),
}


def call(make):
    async def run():
        answer = make(Natty())
        if asyncio.iscoroutine(answer):
            await answer

    asyncio.run(run())


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_the_wrong_type_is_named_before_a_request(name):
    make, said = CALLS[name]
    with pytest.raises(TypeError, match=f"^{said}"):
        call(make)


@pytest.mark.parametrize("option", ["keep", "below"])
def test_a_purge_by_a_number_below_zero_is_refused_before_a_request(option):
    with pytest.raises(ValueError, match=f"{option} is -1; write a whole number, 0 or more"):
        call(lambda client: client.purge_stream("S", **{option: -1}))


def test_a_misspelt_setting_of_a_bucket_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match="bucket b: there is no setting histroy; did you mean history"):
        call(lambda client: client.create_bucket("b", histroy=5))


@pytest.mark.parametrize("method", ["create_stream", "ensure_stream"])
def test_subjects_of_a_stream_are_checked_before_a_request(method):
    with pytest.raises(BadSubjectError, match=r"subject 'x 6': ' ' at character 2 is not allowed"):
        call(lambda client: getattr(client, method)("S", subjects=["x 6"]))


def test_a_name_that_is_empty_is_still_a_bad_name():
    with pytest.raises(BadNameError, match="the consumer's name is empty"):
        call(lambda client: client.consume("ORDERS", "", print))
