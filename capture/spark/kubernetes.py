"""What Spark on Kubernetes needs of us: an address that pods reach, executors that come, none that are left behind."""

import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from capture.errors import SparkError

WORKERS_PYTHON = "python3"
"""By its name: in an image it has a path of its own, which `capture.spark.executor` puts first."""

DRIVER_HOST = "spark.driver.host"
CONNECT_TIMEOUT = 10.0  # seconds
PENDING = ("spark.kubernetes.allocation.executor.timeout", "600s")
"""What says how long a pod may be pending: its node may have to pull the image first. And Spark's default."""

OTHERS_TIMEOUT = 30.0
"""Seconds that all executors get to come; then those that are there begin."""

POLL = 1.0  # seconds
ENDED = ("Failed", "Succeeded")


def api_server(properties: Mapping[str, str]) -> str:
    """Return the URL of the cluster that `spark.master` means, "" if it means no Kubernetes."""
    scheme, _, url = properties.get("spark.master", "").partition("k8s://")
    return "" if scheme or not url else url if "://" in url else f"https://{url}"


def places(server: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return where pods find the driver, if `properties` don't say, and that Spark makes and removes pods alone.

    Its other objects are for drivers that are pods of `spark-submit` and for files that we don't have: whoever may
    not remove them would read of that at each end, and a killed driver would leave them. SparkError: no such server.
    """
    return {
        **({} if DRIVER_HOST in properties else {DRIVER_HOST: _address_towards(server)}),
        "spark.scheduler.minRegisteredResourcesRatio": "0",  # `settle` waits, and can say for what
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }


def settle(spark: SparkSession) -> None:
    """Remove the pods that drivers before us have left, and wait until our executors are there.

    Executors end by themselves when their driver is gone, and nobody else removes an ended pod. SparkError, which says
    why, when none has come in the time that Spark gives a pod (`spark.kubernetes.allocation.executor.timeout`), or
    when Spark gave up because they all failed; without that, jobs would wait for ever.
    """
    conf, context = spark.sparkContext.getConf(), spark.sparkContext._jsc.sc()
    backend = context.schedulerBackend()
    named = {"spark-role": "executor", "spark-app-name": str(conf.get("spark.app.name"))}
    pods = backend.kubernetesClient().pods().inNamespace(conf.get("spark.kubernetes.namespace", "default"))
    for phase in ENDED:
        pods.withLabels(named).withField("status.phase", phase).delete()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    ours = pods.withLabel("spark-app-selector", spark.sparkContext.applicationId)
    wanted, within = int(conf.get("spark.executor.instances", "2") or 2), context.conf().getTimeAsSeconds(*PENDING)
    began, why = time.monotonic(), "Kubernetes does not say why"
    while not context.isStopped():
        here, waited = backend.getExecutorIds().size(), time.monotonic() - began
        if here >= wanted or (here and waited > OTHERS_TIMEOUT):
            return
        why = _why(ours.list().getItems()) or why
        if waited > within:
            raise SparkError(f"no executor has come within {within} s: {why}")
        time.sleep(POLL)
    raise SparkError(
        "all executors have failed; Spark's log and theirs say why. One with another secret or certificate is refused,"
        " for example"
    )


def _why(pods: Any) -> str:
    """Return what a pod waits for, "" if none says so."""
    for pod in pods:
        name, status = pod.getMetadata().getName(), pod.getStatus()
        for container in status.getContainerStatuses():
            if (waiting := container.getState().getWaiting()) is not None:
                return f"{name}: {waiting.getReason()}: {waiting.getMessage()}"
        for condition in status.getConditions():
            if condition.getStatus() == "False" and condition.getMessage():
                return f"{name}: {condition.getMessage()}"
    return ""


def _address_towards(url: str) -> str:
    """Our own address as that server sees it. Pods reach it there, and often not by this machine's name."""
    server = urlsplit(url)
    try:
        with socket.create_connection((server.hostname, server.port or 443), CONNECT_TIMEOUT) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SparkError(f"{url} can't be reached: {error.strerror or error}") from error
