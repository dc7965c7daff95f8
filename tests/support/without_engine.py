"""Builds and runs docker-compose.yml without a container engine: overlays and namespaces of Linux. It needs root.

    unshare --mount --pid --fork --kill-child --mount-proc python without_engine.py FOLDER

It reads requests as lines of JSON, and answers each with one. Everything ends with it: processes by their namespace,
mounts by theirs. What it does not have: images of others. In place of the image of Python stand this machine's files
with the Python that runs this, in place of the image of NATS the server of the tests, and a `prometheus` on PATH.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import dockerfile
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
CONTAINER = Path(__file__).with_name("container.py")
SUBNET = "10.213.7"
IMAGES = {"nats": "nats-server", "prom/prometheus": "prometheus"}  # images of others, and the programs in their place
CAPABILITIES = "--bounding-set=-all"


def run(*command, **options):
    """Run a command of this machine; its output is the error's text if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


class Engine:
    """The images, the network, the volumes and the containers."""

    def __init__(self, folder, programs):
        self.folder, self.programs = folder, programs
        self.compose = YAML(typ="safe", pure=True).load((ROOT / "docker-compose.yml").read_text())
        self.services = self.compose["services"]
        self.stages = dockerfile.read(ROOT / "Dockerfile")
        self.built = {one["image"]: one["build"]["target"] for one in self.services.values() if "build" in one}
        self.layers, self.roots, self.started, self.numbers = {}, {}, {}, {}
        run("mount", "-t", "tmpfs", "-o", "size=6g,mode=0755", "engine", folder)
        for number, name in enumerate(self.services, 11):
            self.numbers[name] = number
        (folder / "volumes").mkdir()

    # images

    def build(self):
        """Build every stage of the Dockerfile that a service runs."""
        self.layers["base"] = self.make_base()
        for one in self.built.values():
            self.build_stage(self.stages[one])
        return sorted(self.layers)

    def make_base(self):
        """Return the layers that stand for the image of Python: this machine's files, and a Python in /usr/local."""
        base = self.folder / "base"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        library = Path(sysconfig.get_path("stdlib"))
        left_out = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "config-*")
        shutil.copytree(library, base / "usr/local/lib" / version, ignore=left_out, symlinks=True)
        (base / "usr/local/lib" / version / "site-packages").mkdir()
        for shared in Path(sys.base_prefix, "lib").glob("libpython*.so*"):
            shutil.copy2(shared, base / "usr/local/lib", follow_symlinks=True)
        programs = base / "usr/local/bin"
        programs.mkdir()
        shutil.copy2(Path(sys.base_prefix, "bin", version), programs / version)
        for name in ("python", "python3"):
            (programs / name).symlink_to(version)
        root = self.overlay("base", "/", base)
        for java in ("usr/bin/java", "usr/local/bin/java"):  # the image of Python has none
            (root / java).unlink(missing_ok=True)
        return f"{base}:/"

    def overlay(self, name, layers, upper=None):
        """Mount layers with a new writable one on top; return the place."""
        upper, work, root = upper or self.folder / f"{name}.upper", self.folder / f"{name}.work", self.folder / name
        root = self.folder / f"{name}.root"
        for one in (upper, work, root):
            one.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={layers},upperdir={upper},workdir={work}", root)
        self.roots[name] = root
        return root

    def build_stage(self, stage):
        """Carry out the steps of a stage, and of those that it needs, in an overlay."""
        if stage.name in self.layers:
            return
        for needed in [stage.base, *(a[7:] for _, args in stage.steps for a in args if a.startswith("--from="))]:
            if needed in self.stages:
                self.build_stage(self.stages[needed])
        below = self.layers.get(stage.base, self.layers["base"])
        root = self.overlay(stage.name, below)
        for kind in ("proc", "dev"):
            run("mount", "--rbind", f"/{kind}", root / kind)
        for name, arguments in stage.steps:
            {"RUN": self.step, "COPY": self.copy, "WORKDIR": self.make_folder}[name](stage, root, *arguments)
        for kind in ("proc", "dev"):
            run("umount", "--recursive", "--lazy", root / kind)
        self.layers[stage.name] = f"{self.folder / stage.name}.upper:{below}"

    def step(self, stage, root, user, folder, command):
        """Carry out RUN."""
        settings = {
            name: value for name, value in os.environ.items() if name.lower().endswith("proxy") or "PIP" in name
        }
        environment = {**self.image_environment(stage), "HOME": "/root", **settings}
        place = ["chroot", f"--userspec={user}", root, "/bin/sh", "-c", f"cd {folder} && {command}"]
        run(*place, env=environment)

    def copy(self, stage, root, folder, *arguments):
        """Carry out COPY, from the repository or from another stage."""
        options = dict(one[2:].split("=", 1) for one in arguments if one.startswith("--"))
        *sources, destination = [one for one in arguments if not one.startswith("--")]
        source_root = self.roots[options["from"]] if "from" in options else ROOT
        to = root / folder.lstrip("/") / destination if not destination.startswith("/") else root / destination[1:]
        for source in sources:
            if source_root is ROOT:
                self.check_is_sent(source)
            path = source_root / source.lstrip("/")
            place = to / path.name if destination.endswith("/") else to
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                shutil.copytree(path, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(path, place, follow_symlinks=False)
                if "chmod" in options:
                    place.chmod(int(options["chmod"], 8))

    def check_is_sent(self, source):
        """Raise if .dockerignore keeps a file of the repository from the engine."""
        kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        if not any(Path(source).is_relative_to(one) for one in kept):
            raise RuntimeError(f".dockerignore leaves out {source}, which the Dockerfile copies")

    def make_folder(self, stage, root, folder):
        """Carry out WORKDIR."""
        (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def image_environment(self, stage):
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "LD_LIBRARY_PATH": "/usr/local/lib", **(stage.environment if stage else {})}

    # network

    def make_network(self):
        """Start a process that holds a network with one bridge."""
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.await_network(self.holder.pid)
        self.in_network(self.holder.pid, "link", "add", "compose", "type", "bridge")
        self.in_network(self.holder.pid, "link", "set", "compose", "up")

    def await_network(self, process):
        while Path(f"/proc/{process}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.01)

    def in_network(self, process, *arguments):
        run("nsenter", f"--target={process}", "--net", "ip", *arguments)

    def connect(self, name, number, process):
        """Give a container its address."""
        self.await_network(process)
        link = f"c{process}"
        self.in_network(self.holder.pid, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", process)
        self.in_network(self.holder.pid, "link", "set", link, "master", "compose", "up")
        self.in_network(process, "link", "set", "lo", "up")
        if self.services[name].get("network_mode") == "none":
            return
        self.in_network(process, "addr", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
        self.in_network(process, "link", "set", "eth0", "up")

    # containers

    def image(self, name):
        """Return the layers and the settings of a service's image."""
        service = self.services[name]
        if service["image"] in self.built:
            stage = self.stages[self.built[service["image"]]]
            return self.layers[stage.name], stage
        program = self.programs[IMAGES[service["image"].partition(":")[0]]]
        upper = self.folder / f"image-{Path(program).name}"
        place = upper / "usr/local/bin" / Path(program).name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy2(program, place)
        return f"{upper}:{self.layers['base']}", dockerfile.Stage(name, "", entrypoint=[f"/usr/local/bin/{place.name}"])

    def volume(self, text, layers):
        """Return (source, path, whether it is read-only); a new volume gets the owner of its path in the image."""
        source, path, *mode = text.split(":")
        if source.startswith("."):
            return str((ROOT / source).resolve()), path, "ro" in mode
        place = self.folder / "volumes" / source
        if not place.exists() or not any(place.iterdir()):
            place.mkdir(exist_ok=True)
            for layer in layers.split(":"):
                if (found := Path(layer, path.lstrip("/"))).is_dir() and layer != "/":
                    os.chown(place, found.stat().st_uid, found.stat().st_gid)
                    place.chmod(found.stat().st_mode & 0o777)
                    break
        return str(place), path, "ro" in mode

    def start(self, name, command=None, run_as=None):
        """Start a container of a service; return its process."""
        service, (layers, stage) = self.services[name], self.image(name)
        called = run_as or name
        folder = self.folder / "containers" / f"{called}-{time.monotonic_ns()}"
        for one in ("root", "upper", "work"):
            (folder / one).mkdir(parents=True)
        number = self.numbers[name] if run_as is None else 100 + len(list(folder.parent.iterdir())) % 150
        hostname = service.get("hostname", name) if run_as is None else run_as
        lines = [f"{SUBNET}.{one} {other}" for other, one in {**self.numbers, hostname: number}.items()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        user, _, group = service.get("user", stage.user).partition(":")
        privileges = [f"--reuid={user}", f"--regid={group or user}", "--clear-groups"]
        privileges += ["--no-new-privs"] * ("no-new-privileges:true" in service.get("security_opt", []))
        privileges += [CAPABILITIES] * (service.get("cap_drop") == ["ALL"])
        specification = {
            "root": str(folder / "root"), "upper": str(folder / "upper"), "work": str(folder / "work"),
            "layers": layers, "hosts": str(folder / "hosts"), "hidden": [str(ROOT)],
            "hostname": hostname,
            "tmpfs": service.get("tmpfs", []), "read_only": service.get("read_only", False), "privileges": privileges,
            "volumes": [self.volume(text, layers) for text in service.get("volumes", [])],
            "folder": service.get("working_dir", stage.folder),
            "command": [*(service.get("entrypoint") or stage.entrypoint), *(command or service.get("command", []))],
            "environment": {**self.image_environment(stage), **service.get("environment", {})},
        }  # fmt: skip
        if not service.get("entrypoint") and not command and not service.get("command"):
            specification["command"] += stage.command  # an entrypoint of the service leaves out the image's command
        (folder / "specification.json").write_text(json.dumps(specification))
        log = folder.parent / f"{called}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation=private",
                 sys.executable, "-I", "-S", str(CONTAINER), str(folder / "specification.json")],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
            )  # fmt: skip
        self.connect(name, number, process.pid)
        process.stdin.write(b"go\n")
        process.stdin.close()
        process.specification, process.log = specification, log
        return process

    def up(self, within):
        """Start all services that no profile holds back, in the order that depends_on asks for; name those left out."""
        wanted = [name for name, one in self.services.items() if "profiles" not in one]
        absent = [name for name in wanted if not self.has_image(name)]
        deadline = time.monotonic() + within
        waiting = [name for name in wanted if name not in absent]
        while waiting:
            for name in list(waiting):
                if all(self.holds(other, one["condition"]) for other, one in self.needs(name).items()):
                    self.started[name] = self.start(name)
                    waiting.remove(name)
            if time.monotonic() > deadline:
                raise RuntimeError(f"not started within {within} s: {waiting}\n{self.ends()}")
            time.sleep(0.3)
        return absent

    def has_image(self, name):
        image = self.services[name]["image"]
        return image in self.built or IMAGES[image.partition(":")[0]] in self.programs

    def needs(self, name):
        return self.services[name].get("depends_on", {})

    def holds(self, name, condition):
        """Return whether a service is as another one needs it. RuntimeError if it has failed."""
        process = self.started.get(name)
        if process is None:
            return False
        if condition == "service_completed_successfully":
            if process.poll():
                raise RuntimeError(f"{name} ended with {process.returncode}\n{process.log.read_text()[-3000:]}")
            return process.returncode == 0
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}\n{process.log.read_text()[-3000:]}")
        return condition == "service_started" or self.is_healthy(name, process)

    def is_healthy(self, name, process):
        """Return whether the service's own check succeeds inside of its container."""
        kind, *test = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD", kind
        inside = self.inside(process)
        place = [f"--target={inside}", "--mount", "--net", "--uts", "--root", "--wd"]
        environment = [f"{key}={value}" for key, value in process.specification["environment"].items()]
        with contextlib.suppress(subprocess.TimeoutExpired):
            checked = ["nsenter", *place, "env", "-i", *environment, *test]
            return subprocess.run(checked, capture_output=True, timeout=10).returncode == 0
        return False

    def inside(self, process):
        """Return the id of a container's command, or of its first process while there is none."""
        inside = process.pid
        for _ in range(2):
            children = Path(f"/proc/{inside}/task/{inside}/children").read_text().split()
            inside = int(children[0]) if children else inside
        return inside

    def once(self, name, command, within):
        """Run a command in a new container of a service, as `docker compose run --rm` does."""
        process = self.start(name, command, run_as=f"once-{time.monotonic_ns()}")
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"status": None, "out": process.log.read_text()}
        return {"status": process.returncode, "out": process.log.read_text()}

    def stop(self, name, within, number=signal.SIGTERM):
        """Send a signal to a service's command and return its status."""
        process = self.started[name]
        os.kill(self.inside(process), number)
        process.wait(within)
        return process.returncode

    def log(self, name):
        return self.started[name].log.read_text(errors="replace")

    def ended(self):
        """Return the status of each service that has ended."""
        return {name: one.returncode for name, one in self.started.items() if one.poll() is not None}

    def ends(self):
        return "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self.started)

    def restart(self, name):
        self.started[name] = self.start(name)
        return name


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    engine = Engine(folder, json.loads(sys.argv[2]))
    engine.make_network()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"result": getattr(engine, name)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
