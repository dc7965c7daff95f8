"""The wire format of pcgroups in Go: the requests of its library 0.2, and of 0.1, and its tool `cg`, byte by byte."""

import json

from natty.pulling.pin import PIN_HEADER
from natty.wire.message import encode_headers, parse_headers

STATIC, ELASTIC = "static-consumer-groups", "elastic-consumer-groups"
SECOND = 1_000_000_000


class Go:
    """Writes, reads and creates with raw requests."""

    def __init__(self, natty):
        self.natty = natty

    async def ask(self, subject, body=b""):
        """Send bytes, or JSON, to the API and return its answer, also an error."""
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        return json.loads((await self.natty.connection.request(f"$JS.API.{subject}", data))[3])

    async def make_bucket(self, bucket):
        """Create a bucket as nats.go does for the library; an error if one exists with other settings."""
        name = f"KV_{bucket}"
        config = (
            f'{{"name":"{name}","subjects":["$KV.{bucket}.>"],"retention":"limits","max_consumers":-1,"max_msgs":-1,'
            '"max_bytes":-1,"discard":"new","max_age":0,"max_msgs_per_subject":1,"max_msg_size":-1,"storage":"file",'
            '"num_replicas":1,"duplicate_window":120000000000,"deny_delete":true,"allow_rollup_hdrs":true,'
            '"compression":"none","allow_direct":true}'
        )
        return await self.ask(f"STREAM.CREATE.{name}", config.encode())

    async def put(self, bucket, key, value, *, expected=None):
        """Write a record as the library does; `add` and `drop` pass an expected revision."""
        headers = {} if expected is None else {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        raw = await self.natty.connection.request(
            f"$KV.{bucket}.{key}", value, headers=encode_headers(headers) if headers else b""
        )
        return json.loads(raw[3])

    async def delete(self, bucket, key, operation="DEL"):
        """Delete a record, or purge it as `nats kv purge` does."""
        rollup = {"Nats-Rollup": "sub"} if operation == "PURGE" else {}
        headers = encode_headers({"KV-Operation": operation, **rollup})
        await self.natty.connection.request(f"$KV.{bucket}.{key}", b"", headers=headers)

    async def get(self, bucket, key):
        """Return (value, revision, headers) by direct get, as the library reads."""
        subject = f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}"
        raw = await self.natty.connection.request(subject, b"")
        headers = parse_headers(raw[2])
        return raw[3], int(headers["Nats-Sequence"][0]), headers

    async def make_work_queue(self, stream, group, transforms, **limits):
        """Create an elastic group's stream as the library does."""
        name = f"{stream}-{group}"
        config = {
            "name": name,
            "retention": "workqueue",
            "max_consumers": 0,
            "max_msgs": limits.get("max_msgs", 0),
            "max_bytes": limits.get("max_bytes", 0),
            "discard": "new",
            "max_age": 0,
            "max_msgs_per_subject": 0,
            "storage": "file",
            "num_replicas": 1,
            "sources": [
                {"name": stream, "subject_transforms": [{"src": src, "dest": dest} for src, dest in transforms]}
            ],
            "compression": "none",
            "allow_direct": True,
            "mirror_direct": False,
            "consumer_limits": {},
        }
        return await self.ask(f"STREAM.CREATE.{name}", config)

    async def make_consumer(self, stream, group, member, filters, *, ack_wait=5, action="create"):
        """Create an elastic member's consumer, as the appendix records it."""
        name = f"{stream}-{group}"
        wait = ack_wait * SECOND
        body = (
            f'{{"stream_name":"{name}","config":{{"name":"{member}","deliver_policy":"all","ack_policy":"explicit",'
            f'"ack_wait":{wait},"replay_policy":"instant","max_ack_pending":1,"inactive_threshold":{wait},'
            f'"num_replicas":0,"filter_subjects":{json.dumps(filters)},"priority_policy":"pinned_client",'
            f'"priority_timeout":{wait},"priority_groups":["PCG"]}},"action":"{action}"}}'
        )
        return await self.ask(f"CONSUMER.CREATE.{name}.{member}", body.encode())

    async def make_first_consumer(self, stream, name, member, filters, *, ack_wait, durable=False, priority_group=None):
        """Create a member's consumer as pcgroups 0.1 does, whose `ack_wait` is at least 6 s."""
        wait = ack_wait * SECOND
        config = {
            **({"durable_name": name} if durable else {"name": name, "inactive_threshold": wait}),
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": wait,
            "replay_policy": "instant",
            "max_ack_pending": 3,
            "num_replicas": 0,
            "filter_subjects": filters,
            "priority_policy": "pinned_client",
            "priority_timeout": wait,
            "priority_groups": [priority_group or member],
        }
        body = {"stream_name": stream, "config": config, "action": "create"}
        answer = await self.ask(f"CONSUMER.CREATE.{stream}.{name}", body)
        assert "error" not in answer, answer

    def pull(self, stream, consumer, *, pin="", expires=30, group="PCG", batch=500):
        """Open a pull as the library does; return the list to which raw messages are added as they arrive."""
        inbox, arrived = self.natty.connection.new_inbox(), []
        self.natty.connection.subscribe(inbox.decode(), lambda batch: arrived.extend(batch.raw))
        body = {"expires": expires * SECOND, "batch": batch, "idle_heartbeat": expires * SECOND // 2, "group": group}
        request = json.dumps(body | ({"id": pin} if pin else {})).encode()
        self.natty.connection.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", request, reply=inbox)
        return arrived


def pinned_by(raw):
    """Return the pin id in a delivered message."""
    return parse_headers(raw[2])[PIN_HEADER][0]
