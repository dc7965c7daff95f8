from natty.streams.report import Order, leaders_of, replications_of, rows_of, total


def info(name, *, size=0, messages=0, consumers=0, storage="file", cluster=None, **more):
    config = {"name": name, "storage": storage, **more.pop("config", {})}
    state = {"messages": messages, "bytes": size, "consumer_count": consumers, **more.pop("state", {})}
    return {"config": config, "state": state, **({"cluster": cluster} if cluster else {}), **more}


STREAMS = [
    info("B", size=10, messages=3, consumers=2),
    info("A", size=10, messages=9, consumers=1, storage="memory", state={"num_deleted": 4, "lost": {"msgs": [7, 8]}}),
    info("C", size=5, messages=5, consumers=7),
]


def names(order):
    return [row.stream for row in rows_of(STREAMS, order)]


def test_rows_are_sorted_the_least_first_and_by_name_where_equal():
    assert names(Order.BYTES) == ["C", "A", "B"]
    assert names(Order.MESSAGES) == ["B", "C", "A"]
    assert names(Order.CONSUMERS) == ["A", "B", "C"]
    assert names(Order.NAME) == ["A", "B", "C"]
    assert names(Order.STORAGE) == ["B", "C", "A"]


def test_the_total_sums_every_number():
    row = total(rows_of(STREAMS))
    assert (row.consumers, row.messages, row.bytes, row.lost, row.deleted) == (10, 17, 25, 2, 4)
    assert total([]).messages == 0


def test_replicas_tell_leader_and_who_is_behind_or_gone():
    replicas = [
        {"name": "n3", "current": True},
        {"name": "n2", "current": False},
        {"name": "n4", "current": True, "offline": True},
    ]
    clustered = info("A", cluster={"name": "east", "leader": "n1", "replicas": replicas})
    assert rows_of([clustered])[0].replicas == "n1*, n2!, n3, n4!"
    assert rows_of([info("B")])[0].replicas == ""
    assert [row.stream for row in rows_of([clustered, info("B")], cluster="east")] == ["A"]
    assert rows_of([info("A", cluster={"replicas": replicas[:1]})])[0].replicas == "n3"  # nobody leads


def test_placement_and_api_level_are_told():
    config = {"placement": {"cluster": "east", "tags": ["ssd"]}, "metadata": {"_nats.req.level": "2"}}
    row = rows_of([info("A", config=config)])[0]
    assert (row.placement, row.api_level) == ("east ssd", "2")


def test_mirrors_and_sources_are_told_with_their_lag():
    transforms = [{"src": "a.>", "dest": "b.>"}, {"src": "c.>"}]
    sources = [{"name": "EU", "lag": 0, "active": 500, "subject_transforms": transforms}]
    broken = {"name": "HUB", "lag": 12, "active": -1, "filter_subject": "x.>", "external": {"api": "$JS.hub.API"}}
    broken |= {"error": {"description": "not found"}}
    mirror, source = replications_of([info("M", mirror=broken), info("S", sources=sources), info("N")])
    assert (mirror.stream, mirror.kind, mirror.source, mirror.domain) == ("M", "mirror", "HUB", "$JS.hub.API")
    assert (mirror.lag, mirror.active, mirror.filters, mirror.error) == (12, -1, "x.>", "not found")
    assert (source.stream, source.kind, source.lag, source.filters) == ("S", "source", 0, "a.> to b.>, c.>")


def test_leaders_are_counted_the_busiest_first():
    streams = [info(str(number), cluster={"leader": leader}) for number, leader in enumerate(["n2", "n1", "n2"])]
    assert leaders_of([*streams, info("alone")]) == [("n2", 2), ("n1", 1)]
