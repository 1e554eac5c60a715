# SPDX-License-Identifier: Apache-2.0
"""A node in namespaces of its own: containerd, a kubelet and a kube-proxy, with device files that the test chooses.

See `setup.sh` for what the node's mounts, devices and network are made of.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.realnodes.components import CNI_PLUGINS, CONTAINERD, CTR, RUNC, environment
from tests.realnodes.control_plane import ADDRESS, BRIDGE, RealControlPlane, start_proxy
from tests.realnodes.dra_devices import driver_file
from tests.realnodes.features import is_labelled, publish
from tests.realnodes.images import PAUSE, full_name
from tests.realnodes.nvidia import make_environment
from tests.realnodes.nvml_config import list_device_files, write_machine, write_proc
from tests.realnodes.sandbox import CGROUPS, CONTROLLERS
from tests.realnodes.toolkit import Toolkit
from tests.realnodes.worlds import MPS_ROOT, World

SETUP, DEVICES, MPS_SCRIPT = (Path(__file__).with_name(name) for name in ("setup.sh", "devices.sh", "mps-root.sh"))
START_SECONDS = 300
"""Bound on a node's start. A guess; it takes some ten seconds on two quiet cores."""
COMMAND_SECONDS = 120
RESOURCE_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SOCKET = "/run/containerd/containerd.sock"


@dataclass(frozen=True, slots=True)
class Installation:
    """A container runtime, and how it gives containers their GPUs.

    `programs` is the folder of containerd and its shim, and `state` the name of its folders, so that two versions do
    not share one. `handlers` are those of NVIDIA's toolkit. `device_list_strategy` is that of NVIDIA's device plugin:
    by `envvar` the runtime reads NVIDIA_VISIBLE_DEVICES, by `cdi-cri` the kubelet names CDI devices.
    """

    programs: Path = CONTAINERD.parent
    state: str = "containerd"
    handlers: tuple[str, ...] = ("nvidia",)
    default_runtime: str = "runc"
    device_list_strategy: str = "envvar"


DEFAULT_INSTALLATION = Installation()


class Node:
    """One node: started with `start`, and gone with the sandbox at the latest. `built` has NVIDIA's components."""

    def __init__(self, plane: RealControlPlane, name: str, number: int, state: Path, world: World, built: Path) -> None:
        self.name = name
        self.plane = plane
        self.address = f"10.88.0.{10 + number}"
        self.pods = f"10.89.{number}.0/24"
        self.folder = state / name
        self.folder.mkdir()
        self._processes: dict[str, Process] = {}
        self._number = number
        self._built = built
        self.world = world
        self.toolkit = Toolkit(self.folder, built)
        self._installation = DEFAULT_INSTALLATION
        self.kubelet_settings: Mapping[str, Any] = {}

    def start(self, images: Sequence[Path]) -> None:
        """Start all of the node, and wait until the API server shows it Ready."""
        self._enter_namespaces()
        self._set_up()
        self._start_containerd()
        for archive in images:
            self.import_image(archive)
        self.start_kubelet()
        self._processes["kube-proxy"] = start_proxy(
            self.plane, self.name, self._enter(), self.folder / "kube-proxy.log"
        )
        wait_until(f"{self.name} is Ready", self.ready, START_SECONDS, self._processes["kubelet"])

    def import_image(self, archive: Path) -> None:
        """Give the node an image, so that its kubelet finds it without a registry."""
        self.run(str(CTR), "-a", SOCKET, "-n", "k8s.io", "images", "import", str(archive))

    def has_image(self, name: str) -> bool:
        """Tell whether the node has an image, by its name in a pod."""
        return full_name(name) in self.run(str(CTR), "-a", SOCKET, "-n", "k8s.io", "images", "list", "-q").split()

    def set_network(self, up: bool) -> None:
        """Cut the node off from all others, or join it again, as by its cable."""
        subprocess.run(["ip", "link", "set", f"node{self._number}", "up" if up else "down"], check=True)

    def _enter_namespaces(self) -> None:
        """Start the first process of the node's namespaces, in cgroups of its own, and give it a network."""
        for controller in CONTROLLERS:
            cgroup = CGROUPS / controller / self.name
            cgroup.mkdir()
            if controller == "cpuset":
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (cgroup / file).write_text((CGROUPS / controller / file).read_text("ascii"), "ascii")
        join = " && ".join(f"echo $$ > {CGROUPS / controller / self.name}/cgroup.procs" for controller in CONTROLLERS)
        unshare = "unshare --net --pid --mount --uts --ipc --cgroup --fork --kill-child --mount-proc"
        reaper = f"{sys.executable} -m tests.realnodes.sandbox --reap"
        self._anchor = Process("node", ["sh", "-c", f"{join} && exec {unshare} {reaper}"], self.folder / "node.log")
        children = Path(f"/proc/{self._anchor.pid}/task/{self._anchor.pid}/children")
        wait_until(f"{self.name} has its namespaces", lambda: _words(children), START_SECONDS, self._anchor)
        self._pid = int(_words(children)[0])
        wait_until(f"{self.name} runs its first process", self._entered, START_SECONDS, self._anchor)

    def _entered(self) -> bool:
        return "--reap" in Path(f"/proc/{self._pid}/cmdline").read_text("utf-8")

    def _enter(self) -> list[str]:
        """Give the words that run a command in the node, killed with the nsenter that started it."""
        return ["nsenter", "--target", str(self._pid), "--all", "--", "setpriv", "--pdeathsig=KILL"]

    def run(self, *words: str) -> str:
        """Run a command on the node, and give what it says.

        Raises AssertionError with its complaint.
        """
        done = subprocess.run(
            [*self._enter(), *words],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
            env={**os.environ, **environment()},
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(words)[:200]}: {done.stderr[-500:]}"
        return done.stdout

    def _write_world(self) -> None:
        """Write what a driver and its settings are on a node."""
        machine = self.world.machine
        numbers = list_device_files(machine).items()
        lines = "".join(f"{path} {major} {minor}\n" for path, (major, minor) in numbers)
        (self.folder / "devices").write_text(lines, "utf-8")
        write_proc(machine, self.folder / "driver")
        write_machine(machine, self.folder / "machine")
        self.toolkit.install_driver(machine)
        (self.folder / "settings").write_text(self.world.settings(), "utf-8")

    def _set_up(self) -> None:
        self._write_world()
        outer = f"node{self._number}"
        for line in (
            f"ip link add {outer} type veth peer name eth0 netns {self._pid}",
            f"ip link set {outer} master {BRIDGE} up",
        ):
            subprocess.run(line.split(), check=True)
        self.run("sh", "-e", str(SETUP), self.name, str(self.folder), f"{self.address}/24", ADDRESS)
        # Last, because the kernel takes a route only by an address that it can reach, which setup.sh has just given.
        subprocess.run(f"ip route add {self.pods} via {self.address}".split(), check=True)

    def _start_containerd(self) -> None:
        self._write_cni()
        config = self.folder / "containerd.toml"
        installation = self._installation
        text = CONTAINERD_CONFIG.format(
            pause=PAUSE,
            runc=RUNC,
            cni=CNI_PLUGINS,
            conf=self.folder / "cni",
            state=installation.state,
            default=installation.default_runtime,
        )
        config.write_text(text + "".join(map(self.toolkit.handler, installation.handlers)), "utf-8")
        command = [*self._enter(), str(installation.programs / "containerd"), "--config", str(config)]
        surroundings = {**environment(), **self.toolkit.environment()}
        surroundings["PATH"] = f"{installation.programs}:{surroundings['PATH']}"
        process = Process("containerd", command, self.folder / "containerd.log", surroundings)
        self._processes["containerd"] = process
        wait_until("containerd answers", self._containerd_answers, START_SECONDS, process)

    def _containerd_answers(self) -> bool:
        try:
            return bool(self.run(str(CTR), "-a", SOCKET, "version"))
        except AssertionError:
            return False

    def change_installation(self, installation: Installation, images: Sequence[Path]) -> None:
        """Replace the container runtime and what gives containers their GPUs, as a new machine with the node's name.

        The node's pods must be gone, since containerd with another state folder does not know their containers; nor has
        it their images, unless it was there before.
        """
        if "nvidia-device-plugin" in self._processes:
            self.stop_device_plugin()
        for name in ("kubelet", "containerd"):
            self.stop(name)
        self._installation = installation
        self._start_containerd()
        for archive in images:
            self.import_image(archive)
        self.start_kubelet()
        wait_until(f"{self.name} shows its handlers", self._handlers_are_shown, START_SECONDS)
        self.start_device_plugin()

    def _handlers_are_shown(self) -> bool:
        """Tell whether the Node is Ready and lists the handlers of its containerd; containerd 1.x has none to tell."""
        listed = {handler.get("name", "") for handler in self.read()["status"].get("runtimeHandlers") or ()}
        told = self._installation.programs != CONTAINERD.parent
        return self.ready() and listed == ({"", "runc", *self._installation.handlers} if told else set())

    def _write_cni(self) -> None:
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
        configuration = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(configuration), "utf-8")

    def start_kubelet(self) -> None:
        """Start the kubelet, the first time or after it was stopped."""
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps({**KUBELET_CONFIG, **self.kubelet_settings}), "utf-8")
        flags = {
            "config": str(config),
            "kubeconfig": str(self.plane.kubeconfig(self.name)),
            "hostname-override": self.name,
            "node-ip": self.address,
        }
        program = self.plane.binaries.command("kubelet")
        command = [*self._enter(), *program, *(f"--{key}={value}" for key, value in flags.items())]
        self._processes["kubelet"] = Process("kubelet", command, self.folder / "kubelet.log", environment())

    def start_device_plugin(self) -> None:
        """Start NVIDIA's device plugin on the mock driver, and wait until the kubelet counts its devices."""
        self._start_mps_daemon()
        driver = self.toolkit.driver
        cdi = (f"--driver-root={driver}", f"--driver-root-ctr-path={driver}")
        hook = f"--nvidia-cdi-hook-path={self._built}/nvidia-cdi-hook"
        strategy = self._installation.device_list_strategy
        flags = ("--pass-device-specs",) if strategy == "envvar" else (*cdi, hook)
        plugin = self._start_component("nvidia-device-plugin", f"--device-list-strategy={strategy}", *flags)
        wait_until(f"{self.name} offers GPUs", self.offers, START_SECONDS, plugin)

    def start_dra_driver(self) -> None:
        """Start a DRA driver that publishes the node's GPUs, and wait until its slice is there."""
        self.publish_devices()
        flags = {
            "kubeconfig": str(self.plane.kubeconfig("admin")),
            "node-name": self.name,
            "file": str(self.folder / "dra.json"),
        }
        program = self.plane.binaries.command("dra-driver")
        command = [*self._enter(), *program, *(f"--{key}={value}" for key, value in flags.items())]
        process = Process("dra-driver", command, self.folder / "dra-driver.log", environment())
        self._processes["dra-driver"] = process
        wait_until(f"{self.name} publishes its GPUs", lambda: bool(self.slices()), START_SECONDS, process)

    def stop_dra_driver(self) -> None:
        """Stop the DRA driver, and remove what it published, as the kubelet does some time after it."""
        self.stop("dra-driver")
        for item in self.slices():
            self.plane.api.delete(f"{RESOURCE_SLICES}/{item['metadata']['name']}")

    def publish_devices(self, failure: str = "", changes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Let the DRA driver publish what the machine has now, as `driver_file` writes it."""
        path = self.folder / "dra.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(driver_file(self.world.machine, failure, changes)), "utf-8")
        partial.rename(path)

    def slices(self) -> list[Object]:
        """List the ResourceSlices of the node."""
        items = self.plane.api.items(RESOURCE_SLICES)
        return [item for item in items if item["spec"].get("nodeName") == self.name]

    def stop_device_plugin(self) -> None:
        """Stop the device plugin, and wait until the kubelet counts none of its devices."""
        self.stop("nvidia-device-plugin")
        wait_until(f"{self.name} offers no GPUs", lambda: not self.offers(), START_SECONDS)

    def _start_mps_daemon(self) -> None:
        """Start NVIDIA's daemon for MPS where the world shares GPUs by MPS; the device plugin wants it to run."""
        if "mps-control-daemon" in self._processes:
            self.stop("mps-control-daemon")
            self.run("rm", "-rf", MPS_ROOT)
        if self.world.uses_mps:
            daemon = self._start_component("mps-control-daemon")
            ready = f"if [ -e {MPS_ROOT}/.ready ]; then echo yes; fi"
            wait_until("MPS is ready", lambda: self.run("sh", "-c", ready), START_SECONDS, daemon)

    def _start_component(self, program: str, *flags: str) -> Process:
        """Start a program of NVIDIA's with the settings of the world."""
        inside = ["unshare", "--mount", "sh", str(MPS_SCRIPT), MPS_ROOT] if self.world.uses_mps else []
        command = [*self._enter(), *inside, str(self._built / program), f"--config-file={self.folder / 'settings'}"]
        environment = make_environment(self._built, self.folder / "machine")
        process = Process(program, [*command, *flags], self.folder / f"{program}.log", environment)
        self._processes[program] = process
        return process

    def change_driver(self, driver: str, cuda: str) -> None:
        """Replace the driver as an upgrade does."""
        self.change_world(replace(self.world, machine=replace(self.world.machine, driver=driver, cuda=cuda)))

    def change_world(self, world: World) -> None:
        """Replace the GPUs, their driver and the settings, as if another machine had the node's name."""
        self.world = world
        self.stop_device_plugin()
        self._write_world()
        self.run("sh", "-e", str(DEVICES), str(self.folder))
        self.start_device_plugin()
        self.discover_features()

    def restart_device_plugin(self) -> None:
        """Start the device plugin anew, after which it trusts every GPU again.

        Not before the kubelet has seen it go: a busy one withdraws all devices when it does, also those of the new one.
        """
        self.stop_device_plugin()
        self.start_device_plugin()

    def discover_features(self) -> None:
        """Run NVIDIA's gpu-feature-discovery once, and wait until its labels are on the Node."""
        labels = publish(self.plane, self._built, self._enter(), self.name, self.folder)
        labelled = lambda: is_labelled(self.read(), labels)  # noqa: E731
        wait_until(f"{self.name} is labelled", labelled, START_SECONDS, self.plane.labelling)

    def offers(self) -> bool:
        """Tell whether the kubelet reports a device of NVIDIA's as allocatable."""
        return any(name.startswith("nvidia.com/") and int(number) > 0 for name, number in self.allocatable().items())

    def allocatable(self) -> Mapping[str, str]:
        """Give the resources that the kubelet reports as allocatable."""
        amounts: Mapping[str, str] = self.read()["status"].get("allocatable", {})
        return amounts

    def stop(self, name: str) -> None:
        """Kill one program of the node, as a crash does."""
        self._processes.pop(name).stop()

    def read(self) -> Object:
        """Read the Node object."""
        return self.plane.api.get(f"/api/v1/nodes/{self.name}")

    def ready(self) -> bool:
        """Tell whether the API server shows the node Ready."""
        if self.plane.api.client.get(f"/api/v1/nodes/{self.name}").is_error:
            return False
        conditions = self.read().get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def close(self) -> None:
        """End all processes of the node."""
        for name in reversed(list(self._processes)):
            self.stop(name)
        self._anchor.stop(signal.SIGKILL)


def _words(path: Path) -> Sequence[str]:
    return path.read_text("ascii").split()


CONTAINERD_CONFIG = """version = 2
root = "/var/lib/{state}"
state = "/run/{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "{default}"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni}"
  conf_dir = "{conf}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  SystemdCgroup = false
"""
KUBELET_CONFIG: Mapping[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "failCgroupV1": False,
    "cgroupDriver": "cgroupfs",
    "makeIPTablesUtilChains": False,
    "failSwapOn": False,
    "containerRuntimeEndpoint": f"unix://{SOCKET}",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageMinimumGCAge": "24h",
    "nodeLeaseDurationSeconds": 8,
    "nodeStatusUpdateFrequency": "2s",
    "nodeStatusReportFrequency": "10s",
    "resolvConf": "",
    "syncFrequency": "10s",
    "registryPullQPS": 0,
}
