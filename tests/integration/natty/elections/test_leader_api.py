"""What users write: blocks, decorators, options."""

import asyncio
import logging

import pytest
from electing import LONG, forever, vacated
from patient import PATIENCE, until

from natty import LeadershipLostError, Natty, NattyError, StreamExistsError

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "api_leaders"}


async def test_a_block_runs_while_leader_and_ends_with_the_term(natty, name):
    election = natty.leader(name, lease=60.0, **BUCKET)
    async with election as term:
        await term.commit("position", b"1")
        assert election.is_leader()
    assert not election.is_leader()
    with pytest.raises(LeadershipLostError, match="not lead"):
        term.check()

    async def again():
        async with election as term:
            assert await term.read("position") == b"1"
            await natty.bucket(BUCKET["bucket"]).delete(name)  # a foreign delete
            await asyncio.Event().wait()

    with pytest.raises(LeadershipLostError, match=f"does not lead '{name}' any more: superseded"):
        await again()
    assert asyncio.current_task().cancelling() == 0


async def test_an_error_of_the_block_is_raised_as_it_is_and_releases(natty, other, name):
    with pytest.raises(ValueError, match="broken"):
        async with natty.leader(name, lease=LONG, **BUCKET):
            raise ValueError("broken")
    async with asyncio.timeout(PATIENCE), other.leader(name, lease=LONG, **BUCKET):
        pass


async def test_cancelling_the_block_from_outside_stays_a_cancellation(natty, other, name, running):
    inside = asyncio.Event()

    async def office():
        async with natty.leader(name, lease=LONG, **BUCKET):
            inside.set()
            await asyncio.Event().wait()

    task = running(office())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(PATIENCE), other.leader(name, lease=LONG, **BUCKET):
        pass


async def test_one_server_is_mentioned_once_and_is_no_warning(natty, natty_name, caplog, running):
    caplog.set_level(logging.INFO)

    def said():
        return [(one.levelname, one.getMessage()) for one in caplog.records if "on one server" in one.getMessage()]

    bucket = natty_name("leaders")
    election = natty.election("any", bucket=bucket)
    await election.prepare()
    text = f"the elections of bucket {bucket} are on one server: while it is down, no node leads"
    assert said() == [("INFO", text)]
    terms = []
    await vacated(natty, "any", bucket)
    running(election.run(forever(terms)))  # the elections' own connection finds the bucket, too
    await until(lambda: terms)
    await election.prepare()
    assert len(said()) == 1
    assert "WARNING" not in {one.levelname for one in caplog.records}


async def test_several_commits_are_stored_together_or_not_at_all(natty, name):
    election = natty.leader(name, lease=LONG, **BUCKET)
    async with election as term:
        await term.batch({"a": b"1", "b": b"1"})
        await natty.publish(election.commit_subject("b"), b"stolen")  # somebody without a token
        with pytest.raises(NattyError):
            await term.batch({"a": b"2", "b": b"2"})
        assert (await election.last_commit("a")).data == b"1"
        await term.batch({"a": b"3", "b": b"3"})  # what was in doubt is read again
        assert (await election.last_commit("b")).data == b"3"


async def test_an_election_has_a_bucket_and_a_key_of_its_own(natty, natty_name):
    bucket, key = natty_name("ancestor"), "some.key"
    options = {"bucket": bucket, "key": key, "lease": LONG, "replicas": 1, "description": "mine"}
    await natty.election("a name of mine", **options).prepare()
    await vacated(natty, key, bucket)
    async with natty.leader("a name of mine", node_name="node-1", **options):
        assert await natty.get_leader("whatever", bucket=bucket, key=key) == "node-1"
    config = (await natty.jetstream.request(f"STREAM.INFO.KV_{bucket}"))["config"]
    assert (config["num_replicas"], config["description"], config["max_age"]) == (1, "mine", 0)
    assert config["republish"]["dest"] == f"el.obs.{bucket}.>"
    assert config["first_seq"] > 1_700_000_000_000


async def test_a_bucket_that_lacks_what_is_needed_is_refused_with_the_difference(natty, natty_name):
    bucket = natty_name("plain")
    await natty.create_bucket(bucket)
    with pytest.raises(StreamExistsError, match="allow_atomic is None, wanted True; republish"):
        await natty.election("x", bucket=bucket).run(forever([]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": float("nan")}, "lease is nan; write a number of seconds"),
        ({"max_stall": 0.1}, r"max_stall of 0\.1 s is less than two signs of life"),
        ({"grace": 0.0}, r"grace is 0\.0; write a number of seconds, .* more than 0"),
        ({"priority": 101}, "priority is 101; write a whole number, 0 to 100"),
        ({"key": "a..b"}, "is not a key"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Natty().election("x", **options)
