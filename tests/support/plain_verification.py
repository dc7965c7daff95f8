"""What an archive holds of each stream, from lists of all its objects: the plain way, to compare ours with."""

from collections import defaultdict

from capture.archive.manifest import TABLE, is_outside, list_blocks
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import format_of
from capture.verification import objects
from capture.verification.holdings import BROKEN, SOUND, UNDECODABLE_KEY, Finding, State, recorded_sequences
from capture.verification.verdict import Holdings


async def read_archive(store, picture, *, deep=True, pending_entries=(), keys=None, again=None, on_progress=None):
    """Return what `objects.read_archive` returns. The pictures have all objects in their lists."""
    findings = {}
    pending_entries = list(pending_entries)
    while True:
        adopted = [*picture.blocks, *picture.files]
        records = [*adopted, *picture.list_unadopted(pending_entries)]
        await _check_objects(
            store, [one for one in records if one.path not in findings], findings, deep, keys, on_progress
        )
        gone = {one.path for one in records if findings[one.path].state is State.GONE}
        if not gone or again is None:
            break
        pending_entries, newer = await again()
        named = {one.path for one in (*newer.blocks, *newer.files, *newer.list_unadopted(pending_entries))}
        if gone <= named:
            break
        picture = newer
        for path in gone & named:
            del findings[path]
    return _add_up_streams(records, adopted, picture, findings, deep)


async def _check_objects(store, records, findings, deep, keys, on_progress):
    outside = any(is_outside(one.path) for one in records)
    listed = await list_blocks(store, outside=outside) + await store.list(TABLE) if records else []
    sizes = {one.path: one.bytes for one in listed}
    for record in records:
        finding = _check_size(record, sizes.get(record.path))
        if finding is SOUND and deep:
            finding = await objects._check_object(store, record, keys)
        findings[record.path] = finding


def _check_size(record, found):
    if found is None:
        return Finding(State.GONE, f"{record.path} is missing")
    if found != record.bytes:
        return Finding(State.DAMAGED, f"{record.path} has {found:,} bytes, not {record.bytes:,}")
    if not recorded_sequences(record):
        return Finding(State.DAMAGED, f"the record of {record.path} has no readable sequences")
    return SOUND


def _add_up_streams(records, adopted, picture, findings, deep):
    """Add up the holdings of every object."""
    paths, removed = ({one.path for one in adopted}, picture.removed)
    found = {}
    for stream in sorted({one.stream for one in records} | removed.keys()):
        mine = [one for one in records if one.stream == stream]
        found[stream] = _add_up(mine, paths, findings, removed.get(stream, Sequences()), deep)
    return found


def _add_up(records, adopted, findings, removed, deep):
    """Add up some objects. Undecodable: only under the undecodable key. Proven: just read in full."""
    table = [one for one in records if one.path.startswith(TABLE)]

    def find_held(one):
        return _sequences_of(one, findings[one.path])

    stored = Sequences.union_of(map(find_held, records))
    tabled = Sequences.union_of(map(find_held, table))
    failed = [one for one in records if findings[one.path].state in BROKEN]
    dangling = [one for one in failed if findings[one.path].state is State.GONE and one.path not in adopted]
    given_up = {one.path for one in dangling}
    broken = [one for one in failed if one.path not in given_up]
    lost = Sequences.union_of(map(recorded_sequences, broken)) - stored
    unchecked = [one for one in records if findings[one.path].state is State.UNCHECKED]
    proofs = (one for one in records if deep and one.path in adopted and _is_proof(one, findings[one.path]))
    return Holdings(
        stored=stored,
        table=tabled,
        undecodable=stored - Sequences.union_of(find_held(one) for one in records if one.key != UNDECODABLE_KEY),
        incomplete=_find_incomplete(records, find_held),
        proven=Sequences.union_of(map(recorded_sequences, proofs)),
        removed=removed - stored - lost,
        lost=lost,
        dangling={findings[one.path].sentence: recorded_sequences(one) - stored - removed for one in dangling},
        duplicates=sum(findings[one.path].rows or one.count for one in table if find_held(one)) - len(tabled),
        problems=tuple(findings[one.path].sentence for one in broken),
        unchecked=tuple(findings[one.path].sentence for one in unchecked),
        objects=len(records),
        bytes=sum(one.bytes for one in records),
    )


def _find_incomplete(records, find_held):
    """Return the sequences that are in no object of a format that keeps messages whole, by the name of their format."""
    partly = defaultdict(list)
    for one in records:
        if not format_of(one.format).restorable:
            partly[one.format.partition(".")[0]].append(find_held(one))
    if not partly:
        return {}
    whole = Sequences.union_of(find_held(one) for one in records if format_of(one.format).restorable)
    return {name: Sequences.union_of(several) - whole for name, several in partly.items()}


def _sequences_of(record, finding):
    return finding.held or Sequences() if finding.state in BROKEN else recorded_sequences(record)


def _is_proof(record, finding):
    """Return whether the object proves its messages: CSV does not store the payloads that it turns into rows."""
    return finding.state is State.SOUND and format_of(record.format).restorable
