"""Streams made on demand: the first message of a token is stored, its stream is made, once, and nothing is doubled."""

import asyncio

import msgspec
import pytest
from deposed import elected_and_asleep
from electing import vacated
from patient import PATIENCE
from template_streams import payloads_of

from natty import ConfigError, NattyError, StaleTokenError
from natty.templates import TemplateNotFoundError
from natty.templates.declared import BUCKET, ELECTION
from natty.templates.maker import MAKING, Job, Maker, report_of


@pytest.fixture
async def template(natty, natty_name, running):
    """Return a function that declares a template `<name>.*` → `<name>_{1}` and, unless told otherwise, runs it."""
    made = []

    async def declare(*, run=True, name=None, **options):
        name = name or natty_name("t")
        defaults = {"subject": f"{name}.*", "stream": f"{name}_{{1}}"}
        made.append(await natty.stream_templates().add(name, **defaults | options))
        if run:
            running(natty.stream_templates().run())
        return made[-1]

    yield declare
    for one in made:
        await natty.delete_stream(one.intake)
        await natty.bucket(BUCKET).purge(one.name)


async def held(natty, stream, count, within=PATIENCE):
    """Wait until a stream holds so many messages, and return their payloads."""
    async with asyncio.timeout(within):
        while True:
            try:
                state = (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]
            except NattyError:
                state = {"messages": 0}
            if state["messages"] >= count:
                break
            await asyncio.sleep(0.05)
    return await payloads_of(natty, stream)


async def standing(natty, name, condition, within=PATIENCE):
    """Wait until a template stands as wanted."""
    async with asyncio.timeout(within):
        while not condition(found := await natty.stream_templates().info(name)):
            await asyncio.sleep(0.05)
    return found


async def test_the_first_message_of_a_token_is_stored_and_gets_a_stream_with_all_that_follow(natty, template):
    made = await template(settings={"max_msgs_per_subject": 100})
    for number in range(10):
        await natty.publish(f"{made.name}.{'ab'[number % 2]}", b"%d" % number)
    assert await held(natty, f"{made.name}_a", 5) == [b"0", b"2", b"4", b"6", b"8"]
    assert await held(natty, f"{made.name}_b", 5) == [b"1", b"3", b"5", b"7", b"9"]
    config = (await natty.jetstream.request(f"STREAM.INFO.{made.name}_a"))["config"]
    assert (config["max_msgs_per_subject"], config["metadata"]["natty.template"]) == (100, made.name)


async def test_what_is_published_before_anybody_runs_the_template_is_kept(natty, template, running):
    made = await template(run=False)
    await natty.publish(f"{made.name}.early", b"first")
    assert (await natty.stream_templates().info(made.name)).waiting == {f"{made.name}.early": 1}
    running(natty.stream_templates().run())
    assert await held(natty, f"{made.name}_early", 1) == [b"first"]


@pytest.mark.long
async def test_a_message_leaves_the_intake_once_its_stream_has_it(natty, template):
    made = await template()
    await natty.publish(f"{made.name}.a", b"x")
    await held(natty, f"{made.name}_a", 1)
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{made.intake}"))["state"]["messages"]:
            await asyncio.sleep(0.1)


async def test_bad_tokens_limits_and_a_clash_are_reported_and_hold_back_nobody(natty, template):
    made = await template(max_streams=2)
    taken = f"{made.name}_taken"
    await natty.create_stream(taken, subjects=[f"{taken}.other"])
    for token in ("a/b", "taken", "good"):
        await natty.publish(f"{made.name}.{token}", b"x")
    assert await held(natty, f"{made.name}_good", 1) == [b"x"]
    found = await standing(natty, made.name, lambda now: len(now.refused) == 2)
    assert "'/' at character" in found.refused[f"{made.name}.a/b"]
    assert f"there is a stream {taken} that is none of this template's" in found.refused[f"{made.name}.taken"]
    await natty.publish(f"{made.name}.second", b"x")
    await natty.publish(f"{made.name}.third", b"x")
    found = await standing(natty, made.name, lambda now: len(now.streams) == 2 and len(now.refused) == 3)
    assert "has its 2 streams" in found.refused[f"{made.name}.third"]
    assert sum(found.waiting.values()) == 3
    await natty.stream_templates().edit(made.name, max_streams=3)
    assert await held(natty, f"{made.name}_third", 1) == [b"x"]
    assert (await natty.jetstream.request(f"STREAM.INFO.{taken}"))["config"]["subjects"] == [f"{taken}.other"]


@pytest.mark.long
async def test_a_stream_that_was_deleted_is_made_again_for_the_next_message(natty, template):
    made = await template()
    await natty.publish(f"{made.name}.a", b"old")
    await held(natty, f"{made.name}_a", 1)
    async with asyncio.timeout(PATIENCE):
        while (await natty.jetstream.request(f"STREAM.INFO.{made.intake}"))["state"]["messages"]:
            await asyncio.sleep(0.1)
    await natty.delete_stream(f"{made.name}_a")
    await natty.publish(f"{made.name}.a", b"new")
    assert await held(natty, f"{made.name}_a", 1) == [b"new"]


async def test_a_stream_that_its_operator_changed_stays_as_it_is(natty, template):
    made = await template(run=False)
    stream = f"{made.name}_a"
    document = made.document(stream, f"{made.name}.a")
    await natty.jetstream.request(
        f"STREAM.CREATE.{stream}", document | {"storage": "file", "retention": "limits", "max_msgs": 7}
    )
    await natty.publish(f"{made.name}.b", b"x")
    await natty.publish(f"{made.name}.a", b"x")
    assert await held(natty, stream, 1) == [b"x"]
    assert (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["config"]["max_msgs"] == 7
    assert (await natty.stream_templates().info(made.name)).refused == {}


async def test_a_removed_template_leaves_its_streams_and_each_takes_its_subjects(natty, template):
    made = await template()
    await natty.publish(f"{made.name}.a", b"before")
    await held(natty, f"{made.name}_a", 1)
    assert await natty.stream_templates().rm(made.name) == [f"{made.name}_a"]
    ack = await natty.publish(f"{made.name}.a", b"after")
    assert ack.stream == f"{made.name}_a"
    assert await payloads_of(natty, f"{made.name}_a") == [b"before", b"after"]
    with pytest.raises(TemplateNotFoundError):
        await natty.stream_templates().info(made.name)


async def test_a_template_is_not_removed_while_messages_wait_that_have_no_stream(natty, template):
    made = await template()
    await natty.publish(f"{made.name}.a/b", b"kept")
    with pytest.raises(ConfigError, match=rf"1 message waits for a stream \(1 on {made.name}\.a/b\)"):
        await natty.stream_templates().rm(made.name)
    await natty.publish(f"{made.name}.a/b", b"kept, too")
    assert (await natty.stream_templates().info(made.name)).waiting == {f"{made.name}.a/b": 2}


async def test_a_template_declared_again_is_the_same_and_otherwise_it_is_refused(natty, template):
    made = await template(run=False)
    again = await template(run=False, name=made.name)
    assert again == made
    with pytest.raises(ConfigError, match=r"template .* exists: max_streams is 1000, wanted 5"):
        await template(run=False, name=made.name, max_streams=5)


async def test_a_template_whose_subjects_another_stream_takes_is_refused(natty, natty_name, template):
    other = natty_name("other")
    await natty.create_stream(other, subjects=[f"{other}.x"])
    with pytest.raises(ConfigError, match=rf"stream {other} takes {other}\.\*"):
        await template(run=False, name=other)


async def test_settings_that_the_server_refuses_are_told_when_the_template_is_declared(natty, natty_name, template):
    name = natty_name("t")
    with pytest.raises(ConfigError, match=r"no stream of template .* could be made: .*roll-?ups"):
        await template(run=False, name=name, settings={"allow_rollup_hdrs": True, "deny_purge": True})
    with pytest.raises(NattyError):
        await natty.jetstream.request(f"STREAM.INFO.TEMPLATE_{name}")


async def test_publishers_are_refused_when_too_much_waits_on_their_subject(natty, template):
    made = await template(run=False, max_waiting=2)
    for _ in range(2):
        await natty.publish(f"{made.name}.a", b"x")
    with pytest.raises(NattyError, match="maximum messages per subject exceeded"):
        await natty.publish(f"{made.name}.a", b"x")
    await natty.publish(f"{made.name}.b", b"x")


async def test_an_unknown_template_is_told_with_the_nearest_names(natty, template):
    made = await template(run=False)
    with pytest.raises(TemplateNotFoundError, match=f"did you mean {made.name}"):
        await natty.stream_templates().info(made.name + "x")


@pytest.mark.long
async def test_a_leader_that_was_deposed_meanwhile_makes_no_stream(natty, template, natty_name):
    bucket = natty_name("office")
    office = natty.election("stream-templates", bucket=bucket, lease=1.0)
    asleep = Maker(natty.jetstream, natty.bucket(BUCKET), await elected_and_asleep(office))
    made = await template(run=False, max_streams=1)
    await natty.publish(f"{made.name}.a", b"x")
    async with natty.leader("stream-templates", bucket=bucket, lease=1.0):
        with pytest.raises(StaleTokenError):
            await asleep._serve(made)
    assert (await natty.stream_templates().info(made.name)).streams == []


@pytest.mark.long
async def test_what_a_leader_had_decided_and_not_made_is_made_by_its_successor_first(
    natty, template, natty_name, running
):
    office = {"bucket": natty_name("office"), "lease": 1.0}
    made = await template(run=False, max_streams=1)
    decided = Job(made.name, f"{made.name}.b", made.document(f"{made.name}_b", f"{made.name}.b"))
    async with natty.leader("stream-templates", **office) as term:
        await term.commit(MAKING, msgspec.json.encode([decided]))
    for token in "ab":
        await natty.publish(f"{made.name}.{token}", b"x")
    running(natty.stream_templates().run(**office))
    assert await held(natty, f"{made.name}_b", 1) == [b"x"]
    assert (await standing(natty, made.name, lambda now: now.streams)).streams == [f"{made.name}_b"]


@pytest.mark.long
async def test_a_stream_that_a_list_did_not_show_is_known_for_the_templates_own_however_it_was_changed(
    natty, template, natty_name
):
    made = await template(run=False)
    stream = f"{made.name}_a"
    document = made.document(stream, f"{made.name}.a")
    await natty.jetstream.request(
        f"STREAM.CREATE.{stream}", document | {"storage": "memory", "retention": "limits", "max_msgs": 7}
    )
    async with natty.leader("stream-templates", bucket=natty_name("office")) as term:
        maker = Maker(natty.jetstream, natty.bucket(BUCKET), term)
        await maker._make(Job(made.name, f"{made.name}.a", document | {"storage": "file"}))
    assert (maker._known, maker._failed) == ({made.name: {stream}}, {})


async def test_a_removed_templates_stream_keeps_the_other_sources_that_it_has(natty, template, natty_name):
    made, other = await template(run=False), natty_name("other")
    await natty.create_stream(other, subjects=[f"{other}.x"])
    document = made.document(f"{made.name}_a", f"{made.name}.a")
    document["sources"].append({"name": other})
    settings = {"storage": "file", "retention": "limits", "num_replicas": 1}
    await natty.jetstream.request(f"STREAM.CREATE.{made.name}_a", document | settings)
    await natty.stream_templates().rm(made.name)
    config = (await natty.jetstream.request(f"STREAM.INFO.{made.name}_a"))["config"]
    assert (config["subjects"], config["sources"]) == ([f"{made.name}.a"], [{"name": other}])


async def test_rubbish_among_the_declarations_stops_no_template(natty, template):
    made = await template(run=False)
    bucket = natty.bucket(BUCKET)
    rubbish = [b"{", b'{"name": "x", "subject": "x.*", "stream": "X_{7}"}', b'{"name":"\xff"}', b"[" * 100_000]
    rubbish += [b'{"name":"x","subject":"x.*","stream":"X_{1}","max_streams":1e300}']
    rubbish += [b'{"name":"x","subject":"x.*","stream":"X_{1}","settings":{"max_age":"x"}}']
    for number, value in enumerate(rubbish):
        await bucket.put(f"rubbish{number}", value)
    await natty.publish(f"$KV.{BUCKET}.\N{GREEK SMALL LETTER BETA}", b"under a name that no client asks for")
    natty.connection.send(f"$KV.{BUCKET}.".encode() + b"\xff", b"not text")
    await vacated(natty, ELECTION)
    await natty.publish(f"$KV.natty_leaders.{ELECTION}.commit.{MAKING}", b"\xff")
    await natty.publish(f"$KV.natty_leaders.{ELECTION}.commit.{report_of(made.name)}", b"\xff")
    try:
        async with asyncio.timeout(PATIENCE):
            running = asyncio.create_task(natty.stream_templates().run())
            await natty.publish(f"{made.name}.a", b"x")
            assert await held(natty, f"{made.name}_a", 1) == [b"x"]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(ConfigError, match=r"template rubbish1 in the bucket is not valid: .*names \{7\}"):
            await natty.stream_templates().info("rubbish1")
    finally:
        for number in range(len(rubbish)):
            await bucket.purge(f"rubbish{number}")
        await natty.purge_stream(bucket.stream, subject=f"$KV.{BUCKET}.\N{GREEK SMALL LETTER BETA}")


async def test_an_intake_that_somebody_deleted_holds_back_no_other_template_and_is_made_again_by_add(
    natty, template, natty_name
):
    lost, made = await template(run=False, name="a" + natty_name("t")), await template()
    await natty.delete_stream(lost.intake)
    await natty.publish(f"{made.name}.a", b"x")
    assert await held(natty, f"{made.name}_a", 1) == [b"x"]
    assert await template(run=False, name=lost.name) == lost
    await natty.publish(f"{lost.name}.a", b"x")
    assert await held(natty, f"{lost.name}_a", 1) == [b"x"]
