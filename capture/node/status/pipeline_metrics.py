"""The figures of the pipelines' tables in Prometheus' text format: for the status page."""

from __future__ import annotations

from capture.node.status.pipelines import PipelinesStatus, PipelineState
from capture.verification.outputs import labels, metric


def pipeline_metrics(status: PipelinesStatus, now: float) -> str:
    """Return gauges `capture_pipeline_…`, by pipeline. What is not known has no sample; ages are those at `now`."""
    offices = (
        ("capture_pipelines_ok", "Whether nothing is wrong with the pipelines.", not status.troubles),
        ("capture_pipelines_led", "Whether a node leads the pipelines.", bool(status.leader)),
        ("capture_pipelines_readable", "Whether the tables of the pipelines could be read.", not status.unreadable),
    )
    text = "".join(metric(name, said, [(labels(pipelines=status.name), float(value))]) for name, said, value in offices)
    samples: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for one in status.pipelines:
        if status.unreadable:
            continue  # a figure that does not change any more would look well for ever
        for name, said, value in _list_figures(one, now):
            if value is not None:
                samples.setdefault((name, said), []).append((labels(pipeline=one.name), float(value)))
    return text + "".join(metric(f"capture_pipeline_{name}", said, found) for (name, said), found in samples.items())


def _list_figures(one: PipelineState, now: float) -> list[tuple[str, str, float | None]]:
    figures: list[tuple[str, str, float | None]] = [
        ("ok", "Whether nothing is wrong with the pipeline.", not one.describe_trouble()),
        ("committed_runs", "Committed runs.", one.run),
        ("failures", "Failed runs since the last good one.", one.failures),
        ("behind", "Messages and rows of its inputs that the table does not have.", one.behind),
        ("rows", "Rows of the table.", one.rows),
        ("files", "Files of the table.", one.files),
        ("bytes", "Bytes of the table.", one.bytes),
        ("quarantined_rows", "Rows that did not meet a condition, in a table of their own.", one.quarantined),
    ]
    if one.behind is not None:
        lag = max(0.0, now - one.waiting_since) if one.waiting_since else 0.0
        figures.append(("lag_seconds", "Seconds that the oldest message waits in the archive for a run.", lag))
    if one.good is not None:
        figures.append(
            ("good_run_age_seconds", "Seconds since the end of the last good run.", max(0.0, now - one.good))
        )
    if last := one.last:
        took = None if last.batches else last.seconds
        figures += [
            ("last_run_age_seconds", "Seconds since the end of the last run.", max(0.0, now - last.ended)),
            ("last_run_seconds", "Duration of the last run.", took),
            ("last_run_failed", "Whether the last run failed.", bool(last.error)),
            ("last_run_rows_in", "New rows that the last run read.", last.rows_in),
            ("last_run_rows_out", "Rows that the last run wrote.", last.rows_out),
            ("last_run_bytes_in", "Bytes of the objects with these rows.", last.bytes_in),
            ("last_run_bytes_out", "Bytes that the last run wrote.", last.bytes_out),
        ]
    return figures
