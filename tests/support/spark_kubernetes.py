"""A namespace on an existing Kubernetes cluster: an account for Spark, secrets for its executors, and settings.

The tests' servers listen on this machine's loopback, so the cluster's only node must be this machine, and pods use its
network. `kubectl` does the rest, with KUBECONFIG; SPARK_KUBERNETES_IMAGE names the image.
"""

import base64
import json
import os
import secrets
import subprocess
import time
from pathlib import Path

import pytest
from patient import PATIENCE
from spark_sealed import sealed

from capture.spark.options import as_properties
from natty.testing import DevCA

EXECUTORS = "spark-role=executor"
RIGHTS = Path(__file__).parents[2] / "examples" / "spark_kubernetes" / "rights.yaml"


class SparkOnKubernetes:
    """A driver's properties files, from `settings`. `pods` lists its executors, and `delete` kills one."""

    def __init__(self, image, folder):
        self.image, self.folder = image, folder
        self.namespace = f"natty-{secrets.token_hex(4)}"
        self.ca = DevCA.create("Spark test CA")
        self.secret = secrets.token_hex(16)
        self.mounted, self.given = {}, {}

    def kubectl(self, *words, said=None):
        """Run kubectl in the namespace; `said` is its standard input."""
        command = ["kubectl", f"--namespace={self.namespace}", *words]
        done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=3 * PATIENCE)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def create(self, kind, name, **fields):
        """Create an object."""
        made = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields}
        self.kubectl("create", "-f", "-", said=json.dumps(made))

    def open(self):
        """Create the namespace, and in it an account with the rights that Spark needs."""
        self.create("Namespace", self.namespace)
        self.create("ServiceAccount", "spark")
        self.kubectl("create", "-f", str(RIGHTS))
        self.kubectl("create", "rolebinding", "spark", "--role=spark", f"--serviceaccount={self.namespace}:spark")
        [cluster] = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o=json"))["clusters"]
        self.server = cluster["cluster"]["server"]
        (self.folder / "api.pem").write_bytes(base64.b64decode(cluster["cluster"]["certificate-authority-data"]))
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/spark/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = json.loads(self.kubectl("create", "--raw", path, "-f", "-", said=json.dumps(asked)))
        (self.folder / "token").touch(mode=0o600)
        (self.folder / "token").write_text(token["status"]["token"])
        (self.folder / "pod.json").write_text(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": {"hostNetwork": True}})
        )

    def give(self, name, variables):
        """Give executors these variables through a secret."""
        self._keep(name, {key: value.encode() for key, value in variables.items()})
        self.given |= {f"spark.kubernetes.executor.secretKeyRef.{key}": f"{name}:{key}" for key in variables}

    def mount(self, name, folder):
        """Give executors the files of a folder, at the same path, through a secret."""
        self.keep(name, folder)
        self.mounted[f"spark.kubernetes.executor.secrets.{name}"] = str(folder)

    def keep(self, name, folder):
        """Put the files of a folder into a secret."""
        self._keep(name, {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    def _keep(self, name, values):
        self.create("Secret", name, data={key: base64.b64encode(value).decode() for key, value in values.items()})

    def settings(self, name, *, executors_ca=None, executors_secret=None, **changed):
        """Write a properties file; executors get a certificate of the given authority, and the given secret."""
        folder = self.folder / name
        mine, theirs = folder / "driver", folder / "executor"
        security, _ = sealed(mine, self.ca), sealed(theirs, executors_ca or self.ca)
        for place, secret in ((mine, self.secret), (theirs, executors_secret or self.secret)):
            (place / "secret").touch(mode=0o600)
            (place / "secret").write_text(secret)
        self.keep(name, theirs)
        file = folder / "spark.conf"
        file.write_text(
            as_properties(
                {
                    "spark.master": f"k8s://{self.server}",
                    "spark.kubernetes.namespace": self.namespace,
                    "spark.kubernetes.authenticate.caCertFile": str(self.folder / "api.pem"),
                    "spark.kubernetes.authenticate.oauthTokenFile": str(self.folder / "token"),
                    "spark.kubernetes.container.image": self.image,
                    "spark.kubernetes.executor.podTemplateFile": str(self.folder / "pod.json"),
                    f"spark.kubernetes.executor.secrets.{name}": str(mine),
                    "spark.kubernetes.executor.request.cores": "0.1",
                    "spark.executor.instances": "2",
                    "spark.blockManager.port": "0",  # all pods have the network, and so the ports, of one machine,
                    "spark.shuffle.readHostLocalDisk": "false",  # and look like it, but their disks are their own
                    **security,
                    "spark.authenticate.secret.file": str(mine / "secret"),
                    **self.mounted,
                    **self.given,
                    **changed,
                }
            )
        )
        file.chmod(0o600)
        return str(file)

    def pods(self):
        """Return the executors' existing pods, ended or not."""
        return json.loads(self.kubectl("get", "pods", f"--selector={EXECUTORS}", "-o=json"))["items"]

    def running(self):
        """Return the names of the running pods."""
        return [pod["metadata"]["name"] for pod in self.pods() if pod["status"].get("phase") == "Running"]

    def kept(self):
        """Return the names of the pods that are not deleted, ended or not."""
        return {pod["metadata"]["name"] for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]}

    def delete(self, pod):
        """Kill a pod."""
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def wait(self, condition, what):
        """Wait until a condition holds; on timeout, show the pods."""
        deadline = time.monotonic() + 3 * PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {3 * PATIENCE} s\n{self.kubectl('describe', 'pods')[-3000:]}")
            time.sleep(0.2)

    def close(self):
        """Delete the namespace."""
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")


@pytest.fixture(scope="module")
def spark_on_kubernetes(tmp_path_factory):
    """A namespace for the tests of one file."""
    image = os.environ.get("SPARK_KUBERNETES_IMAGE")
    if not image:
        pytest.fail("SPARK_KUBERNETES_IMAGE names no image of executors", pytrace=False)
    space = SparkOnKubernetes(image, tmp_path_factory.mktemp("kubernetes"))
    space.open()
    try:
        yield space
    finally:
        space.close()
