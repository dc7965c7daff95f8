"""The engine under `consume` and groups, without a server: what it sends goes into lists."""

from natty.config.settings import Config
from natty.consuming.options import WorkOptions
from natty.consuming.work import Stint, Work
from natty.jetstream import JetStream
from natty.wire.ack import first_delivery
from natty.wire.connection import Connection


class Sent:
    """Takes what receipts send, in place of a pull."""

    def __init__(self):
        self.acks, self.handed_back, self.finished_messages = [], [], 0
        self.kept_acks = self
        self.valid, self.sender_valid = None, None

    def sender(self, valid):
        self.sender_valid = valid
        return self

    def send(self, subject, data):
        """Take what a message is settled with."""

    def ack(self, replies, valid):
        self.acks += replies
        self.valid = valid

    def hand_back(self, replies):
        self.handed_back += replies

    def finish(self, count, size):
        self.finished_messages += count


class Leased(Stint):
    """A stint whose lease the test ends."""

    leased = True
    held = True

    def lasts(self):
        return self.held


def reply(sequence, delivery=1):
    return b"$JS.ACK.S.d.%d.%d.%d.1.0" % (delivery, sequence, sequence)


def raw(sequence, *, delivery=1, headers=b""):
    return b"orders.%d" % sequence, reply(sequence, delivery), headers, b"%d" % sequence


def engine(handler, *, stint=Stint, **options):
    sent = Sent()
    work = Work(
        JetStream(Connection(Config())), ("S", "d"), "d", handler, WorkOptions(**{"dead_letters": False} | options)
    )
    work.start()
    return work, stint(sent, first_delivery("S", "d")), sent
