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
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.controlplane.kubectl import Object
from tests.controlplane.processes import Process, wait_until
from tests.realnodes.components import CNI_PLUGINS, CONTAINERD, CTR, RUNC, environment
from tests.realnodes.control_plane import ADDRESS, BRIDGE, RealControlPlane, start_proxy
from tests.realnodes.images import PAUSE
from tests.realnodes.nvidia import discovery_command, make_environment, read_labels
from tests.realnodes.nvml_config import list_device_files, write_machine, write_proc
from tests.realnodes.sandbox import CGROUPS, CONTROLLERS
from tests.realnodes.worlds import World

SETUP = Path(__file__).with_name("setup.sh")
START_SECONDS = 120
"""Bound on a node's start. A guess; it takes some ten seconds on two quiet cores."""
COMMAND_SECONDS = 120
SOCKET = "/run/containerd/containerd.sock"


class Node:
    """One node: started with `start`, and gone with the sandbox at the latest."""

    def __init__(self, plane: RealControlPlane, name: str, number: int, state: Path, world: World) -> None:
        self.name = name
        self.plane = plane
        self.address = f"10.88.0.{10 + number}"
        self.pods = f"10.89.{number}.0/24"
        self.folder = state / name
        self.folder.mkdir()
        self._processes: dict[str, Process] = {}
        self._number = number
        self.world = world

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

    def _set_up(self) -> None:
        machine = self.world.machine
        numbers = list_device_files(machine).items()
        lines = "".join(f"{path} {major} {minor}\n" for path, (major, minor) in numbers)
        (self.folder / "devices").write_text(lines, "utf-8")
        write_proc(machine, self.folder / "driver")
        write_machine(machine, self.folder / "machine")
        (self.folder / "settings").write_text(self.world.settings(), "utf-8")
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
        config.write_text(CONTAINERD_CONFIG.format(pause=PAUSE, runc=RUNC, cni=CNI_PLUGINS, conf=self.folder / "cni"))
        command = [*self._enter(), str(CONTAINERD), "--config", str(config)]
        process = Process("containerd", command, self.folder / "containerd.log", environment())
        self._processes["containerd"] = process
        wait_until("containerd answers", self._containerd_answers, START_SECONDS, process)

    def _containerd_answers(self) -> bool:
        try:
            return bool(self.run(str(CTR), "-a", SOCKET, "version"))
        except AssertionError:
            return False

    def _write_cni(self) -> None:
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
        configuration = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(configuration), "utf-8")

    def start_kubelet(self) -> None:
        """Start the kubelet, the first time or after it was stopped."""
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(KUBELET_CONFIG), "utf-8")
        flags = {
            "config": str(config),
            "kubeconfig": str(self.plane.kubeconfig(self.name)),
            "hostname-override": self.name,
            "node-ip": self.address,
        }
        program = self.plane.binaries.command("kubelet")
        command = [*self._enter(), *program, *(f"--{key}={value}" for key, value in flags.items())]
        self._processes["kubelet"] = Process("kubelet", command, self.folder / "kubelet.log", environment())

    def start_device_plugin(self, built: Path) -> None:
        """Start NVIDIA's device plugin on the mock driver, and wait until the kubelet counts its devices."""
        self._built = built
        command = [
            *self._enter(),
            str(built / "nvidia-device-plugin"),
            f"--config-file={self.folder / 'settings'}",
            "--pass-device-specs",
        ]
        environment = make_environment(built, self.folder / "machine")
        self._processes["device-plugin"] = Process(
            "device-plugin", command, self.folder / "device-plugin.log", environment
        )
        wait_until(
            f"{self.name} offers GPUs",
            lambda: any(name.startswith("nvidia.com/") and int(n) > 0 for name, n in self.allocatable().items()),
            START_SECONDS,
            self._processes["device-plugin"],
        )

    def change_driver(self, driver: str, cuda: str) -> None:
        """Replace the driver as an upgrade does: the machine's file, then the plugin and the labels."""
        self.world = replace(self.world, machine=replace(self.world.machine, driver=driver, cuda=cuda))
        write_machine(self.world.machine, self.folder / "machine")
        self.restart_device_plugin()
        self.discover_features(self._built)

    def restart_device_plugin(self) -> None:
        """Start the device plugin anew, after which it trusts every GPU again."""
        self.stop("device-plugin")
        self.start_device_plugin(self._built)

    def discover_features(self, built: Path) -> dict[str, str]:
        """Run NVIDIA's gpu-feature-discovery once, and put its labels on the node.

        In a cluster Node Feature Discovery does the last step: it reads the file that gpu-feature-discovery writes.
        """
        output = self.folder / "labels"
        done = subprocess.run(
            [*self._enter(), *discovery_command(built, self.folder / "settings", output), "--oneshot"],
            env=make_environment(built, self.folder / "machine"),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert output.is_file(), done.stderr[-500:]
        labels = read_labels(output)
        self.plane.api.patch(f"/api/v1/nodes/{self.name}", {"metadata": {"labels": labels}})
        return labels

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
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
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
    "registryPullQPS": 0,
}
