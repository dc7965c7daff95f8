"""Spark on Kubernetes: finds an address that pods reach, waits for executors, and removes those left behind."""

import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from capture.errors import SparkError
from capture.spark.clusters import AT_ONCE, await_executors

WORKERS_PYTHON = "python3"
"""By its name: in an image its path differs, and `capture.spark.executor` puts it first."""

DRIVER_HOST = "spark.driver.host"
CONNECT_TIMEOUT = 10.0  # seconds
PENDING = ("spark.kubernetes.allocation.executor.timeout", "600s")
"""The setting for how long a pod may be pending (its node may have to pull the image first), and Spark's default."""

ENDED = ("Failed", "Succeeded")


def api_server(properties: Mapping[str, str]) -> str:
    """Return the URL of the cluster that `spark.master` means; "" if it is not Kubernetes."""
    scheme, _, url = properties.get("spark.master", "").partition("k8s://")
    return "" if scheme or not url else url if "://" in url else f"https://{url}"


def places(server: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return settings: where pods find the driver, if `properties` don't say, and that Spark manages only pods.

    Its other objects are for drivers that are pods of `spark-submit`, and for files that we don't have. Without
    permission to remove them each end would log an error, and a killed driver would leave them. SparkError: no such
    server.
    """
    return {
        **({} if DRIVER_HOST in properties else {DRIVER_HOST: _address_towards(server)}),
        **AT_ONCE,
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }


def settle(spark: SparkSession) -> None:
    """Remove the pods that earlier drivers have left, and wait until our executors are ready.

    Executors end when their driver is gone, but their pods are not removed. SparkError, with the reason, if none has
    registered in the time that Spark allows a pod (`spark.kubernetes.allocation.executor.timeout`).
    """
    conf, context = spark.sparkContext.getConf(), spark.sparkContext._jsc.sc()
    backend = context.schedulerBackend()
    named = {"spark-role": "executor", "spark-app-name": str(conf.get("spark.app.name"))}
    pods = backend.kubernetesClient().pods().inNamespace(conf.get("spark.kubernetes.namespace", "default"))
    for phase in ENDED:
        pods.withLabels(named).withField("status.phase", phase).delete()
    ours = pods.withLabel("spark-app-selector", spark.sparkContext.applicationId)
    await_executors(spark, context.conf().getTimeAsSeconds(*PENDING), lambda: _why(ours.list().getItems()))


def _why(pods: Any) -> str:
    """Return what a pod waits for; "" if none reports it."""
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
    """Return our own address as seen by that server. Pods reach it there, but often not by this machine's name."""
    server = urlsplit(url)
    try:
        with socket.create_connection((server.hostname, server.port or 443), CONNECT_TIMEOUT) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SparkError(f"{url} can't be reached: {error.strerror or error}") from error
