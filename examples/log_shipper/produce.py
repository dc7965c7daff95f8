"""`shipper produce`: one host's log file, line by line, into the stream of its partition."""

import asyncio
import hashlib
import json
import logging
from dataclasses import asdict, replace

from log_shipper.follow import Chunk, Follower, Position
from log_shipper.settings import ProduceSettings, ShipperError, partition_of
from natty import Bucket, KeyNotFoundError, Natty, Publisher, RevisionConflictError

logger = logging.getLogger("shipper")

LOOK_EVERY = 0.02  # seconds between two looks at a file that has nothing new


class Bookmark:
    """The position where shipping of a file continues: an entry of a key-value bucket, moved by compare-and-set."""

    def __init__(self, bucket: Bucket, settings: ProduceSettings) -> None:
        self._bucket, self._settings = bucket, settings
        self._key = f"{settings.host}.{hashlib.sha256(bytes(settings.file)).hexdigest()[:16]}"
        self._revision = 0
        self.position: Position | None = None

    async def load(self, natty: Natty, stream: str) -> None:
        """Read the position. The last line in the stream tells when it is behind: the shipper died before moving it."""
        try:
            entry = await self._bucket.get(self._key)
        except KeyNotFoundError:
            return
        self._revision, self.position = entry.revision, Position(**json.loads(entry.value))
        last = await natty.jetstream.read(stream, subject=self._settings.route.stored_on(self._settings.host))
        file, _, place = (last.headers.get("Nats-Msg-Id", [""])[0] if last else "").rpartition(":")
        if file == self.position.file and (end := int(place.rpartition("-")[2])) > self.position.offset:
            self.position = replace(self.position, offset=end)

    async def move(self, position: Position) -> None:
        """Store the position, unless another shipper has moved it since."""
        value = json.dumps(asdict(position)).encode()
        try:
            self._revision = await self._bucket.update(self._key, value, revision=self._revision)
        except RevisionConflictError:
            raise ShipperError(
                f"another shipper ships {self._settings.file} as {self._settings.host}: stop one of the two"
            ) from None
        self.position = position


async def produce(natty: Natty, settings: ProduceSettings, stopping: asyncio.Event) -> None:
    """Ship the file until `stopping`. FileVanishedError; ShipperError: another shipper ships it, too."""
    route = settings.route
    stream = await route.ensure(natty, partition_of(settings.host, route.partitions))
    bucket = await natty.create_bucket(f"{route.subject.replace('.', '_')}-positions")
    bookmark = Bookmark(bucket, settings)
    await bookmark.load(natty, stream)
    follower = Follower(settings.file, bookmark.position, patience=settings.patience)
    logger.info("%s goes to %s on %s", settings.file, stream, route.publish_on(settings.host))
    try:
        async with natty.publisher(stream) as publisher:
            while not stopping.is_set():
                if chunk := follower.read():
                    await ship(chunk, publisher, route.publish_on(settings.host), bookmark)
                    continue
                if bookmark.position is None and follower.position is not None:
                    await bookmark.move(follower.position)  # empty so far; from now on it is known under any name
                await asyncio.sleep(LOOK_EVERY)
    finally:
        follower.close()


async def ship(chunk: Chunk, publisher: Publisher, subject: str, bookmark: Bookmark) -> None:
    """Store the lines, then move the bookmark behind them."""
    after, before = chunk.position, bookmark.position
    if before is None or (before.file, before.beginning) != (after.file, after.beginning):
        # The identity comes first: after a crash the next shipper must make the same message ids of the same lines.
        await bookmark.move(replace(after, offset=chunk.lines[0][0]))
    file = after.file
    for start, end, line in chunk.lines:
        await publisher.publish(subject, line, msg_id=f"{file}:{start}-{end}")
    await publisher.flush()
    await bookmark.move(after)
