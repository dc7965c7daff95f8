"""Judges the logs of a group's processes."""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Verdict:
    """Counts, and lists of violations, which are empty if the guarantees held."""

    handled: int = 0  # successes
    twice: int = 0  # successes of messages that had succeeded before
    begun_again: int = 0  # messages that were begun more than once
    cut: int = 0
    overran: int = 0  # handlers still running when their lease ended, as the processes reported
    overlaps: int = 0  # handlers that were paused for too long, while another one of their key ran
    lost: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)  # at the same time, without a pause
    again: list[str] = field(default_factory=list)  # more often than its process had losses while it was in flight
    losses: int = 0  # of all processes: killed, paused, without server, pin or consumer

    @property
    def wrongs(self):
        return [*self.lost, *self.unordered, *self.together, *self.again]

    def __str__(self):
        wrongs = f"{len(self.lost)} lost, {len(self.unordered)} out of order, {len(self.together)} at the same time"
        wrongs += f", {len(self.again)} again without a loss ({self.losses} losses)"
        return (
            f"{self.handled} handled, {wrongs}; {self.begun_again} begun again, {self.twice} succeeded twice,"
            f" {self.cut} cut short, {self.overlaps} overlaps after a pause ({self.overran} told)"
        )


@dataclass
class Flight:
    """The times that decide whether a message was in flight in a process at a loss. Nanoseconds."""

    confirmed: list[tuple[int, int]] = field(default_factory=list)  # (acks before this, are there by then)
    losses: list[tuple[float, float]] = field(default_factory=list)  # (from, until)

    def excuses(self, run, following):
        """Return whether a message may be handled again at time `following`, after this run.

        It may if there was a loss between the start of the run and the arrival of its ack at the server.
        """
        index = bisect_left(self.confirmed, (run[1], 0))
        landed = self.confirmed[index][1] if run[4] and index < len(self.confirmed) else math.inf
        return any(since <= min(landed, following) and until >= run[0] for since, until in self.losses)


def judge(logs, ended, published, window, *, killed=(), outages=()):
    """Judge the logs of processes, {name: path}; `ended` is when each ended, in ns of the monotonic clock.

    `published` is the number of messages of each key, `window` the ack wait in seconds: a loss is noticed within it.
    `killed` names the processes that were killed, `outages` are times (from, until) without a server.
    """
    verdict = Verdict()
    runs = defaultdict(list)  # key → (began, over, number, process, succeeded)
    pauses = defaultdict(list)  # process → (from, until)
    flights = defaultdict(lambda: Flight(losses=list(outages)))
    for name, path in logs.items():
        _read(path.read_text().splitlines(), name, ended.get(name), runs, pauses, verdict, flights[name], window * 1e9)
        flights[name].losses += [(ended[name], math.inf)] if name in killed else []
        flights[name].losses += pauses[name]
    verdict.losses = sum(len(one.losses) - len(outages) for one in flights.values()) + len(outages)
    for key, count in published.items():
        of_key = sorted(runs.get(key, []))
        first = {}
        for _, over, number, _, succeeded in sorted(of_key, key=lambda run: run[1]):
            if succeeded:
                verdict.handled += 1
                verdict.twice += number in first
                first.setdefault(number, over)
        verdict.lost += [f"{key} {number}" for number in range(count) if number not in first]
        order = sorted(first, key=first.get)
        verdict.unordered += [f"{key}: {a} after {b}" for b, a in pairwise(order) if a < b]
        verdict.again += _unexcused(key, of_key, flights, pauses, window * 1e9)
        verdict.begun_again += sum(times > 1 for times in Counter(run[2] for run in of_key).values())
        _overlaps(key, of_key, pauses, window * 1e9, verdict)
    return verdict


def _unexcused(key, of_key, flights, pauses, window):
    """Yield repeated runs without an excuse: the message was handled and acknowledged before, without a loss.

    A process may be paused when it has decided to begin: it begins at the end of the pause, though its lease is over.
    """
    before = {}
    for run in of_key:
        began, _, number, process, _ = run
        last = before.get(number)
        if last and not flights[last[3]].excuses(last, began) and not _paused((began, began, *run[2:]), pauses, window):
            yield f"{key}: {number} in {process} after {last[3]}"
        before[number] = run


def _read(lines, name, killed, runs, pauses, verdict, flight, window):
    running = {}
    last = 0
    for line in lines:
        words = line.split()
        what, last = words[0], int(words[1])
        if what == "S":
            running[words[2], int(words[3])] = last
        elif what in "EC" and (began := running.pop((words[2], int(words[3])), None)) is not None:
            runs[words[2]].append((began, last, int(words[3]), name, what == "E"))
            if what == "C":
                verdict.cut += 1
                flight.losses.append((last - window, last))
        elif what == "P":
            pauses[name].append((last - int(words[2]), last))
        elif what == "L":
            flight.losses.append((last - window, last))
        elif what == "F":
            flight.confirmed.append((int(words[2]), last))
        elif what == "O":
            verdict.overran += int(words[2])
    for (key, number), began in running.items():
        runs[key].append((began, killed or last, number, name, False))


def _overlaps(key, of_key, pauses, window, verdict):
    busy = None  # the run that ends last so far
    stood_still = set()
    for run in of_key:
        if busy is not None and run[0] < busy[1]:
            if excused := [one for one in (busy, run) if _paused(one, pauses, window)]:
                stood_still.add(excused[0])
            else:
                verdict.together.append(f"{key}: {busy[2]} in {busy[3]} and {run[2]} in {run[3]}")
        if busy is None or run[1] > busy[1]:
            busy = run
    verdict.overlaps += len(stood_still)


def _paused(run, pauses, window):
    """Return whether the process was paused, for about the window, while the handler ran."""
    return any(
        began < run[1] and until > run[0] and until - began > 0.8 * window for began, until in pauses.get(run[3], [])
    )
