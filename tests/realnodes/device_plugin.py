# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device plugin on the mock libnvidia-ml, with the kubelet's half of its API in place of a kubelet.

Both run in namespaces of their own, as the plugin's paths are fixed: /var/lib/kubelet/device-plugins, /mps,
/proc/driver and /dev are there what a node with the machine's GPUs has. Needs root.
"""

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.controlplane.processes import Process, wait_until
from tests.realnodes.nvidia import KUBELET, make_environment
from tests.realnodes.nvml_config import Gpu, MigInstance, list_device_files, report_xid, write_machine, write_proc
from tests.realnodes.worlds import World

ANSWER_SECONDS = 30
"""Bound on whatever the plugin is to do; it takes a second, and its health check notices an XID at once."""
SETUP = """set -e
mount -t tmpfs none /mnt
mkdir /mnt/mps /mnt/dev
for entry in /*; do
    case "$entry" in
    /mnt | /mps | /dev) ;;
    *) if [ -L "$entry" ]; then cp -P "$entry" /mnt
       elif [ -d "$entry" ]; then mkdir "/mnt$entry"; mount --rbind "$entry" "/mnt$entry"
       fi ;;
    esac
done
mount -t tmpfs none /mnt/var/lib
mkdir -p /mnt/var/lib/kubelet/device-plugins
mount --bind "$1" /mnt/proc/driver
mount -t tmpfs -o dev none /mnt/dev
mknod /mnt/dev/null c 1 3
mkdir /mnt/dev/nvidia-caps
while read -r path major minor; do mknod "/mnt$path" c "$major" "$minor"; done < "$2"
exec chroot /mnt "$3"
"""
"""Run in the new namespace with the folder for /proc/driver, the list of device files, and the kubelet's half.

It makes a root of its own, in which all is that of the machine but what is mounted here; /mps is that of a container.
"""
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""With the first process of a PID namespace all others end, whoever started them."""
SOCKET = "var/lib/kubelet/device-plugins/kubelet.sock"
MPS_READY = "mps/.ready"
"""The file that mps-control-daemon makes when it has started (its cmd/mps-control-daemon/main.go)."""


def missing() -> str:
    """Say what this machine lacks for the namespaces; empty if nothing."""
    if os.geteuid() != 0:
        return "The device plugin runs in namespaces of its own, which need root. Run the tests as root."
    done = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    return (
        f"This machine allows no mount and PID namespaces ({done.stderr.strip()}). Allow root to make them."
        if done.returncode
        else ""
    )


class PluginRun:
    """A running device plugin, and what it told the kubelet."""

    def __init__(
        self, plugin: Process, kubelet: subprocess.Popen[str], root: Path, output: Path, machine: Path
    ) -> None:
        self.plugin = plugin
        self.machine = machine
        self._kubelet = kubelet
        self._root = root
        self._output = output

    def _lines(self) -> list[dict[str, Any]]:
        text = self._output.read_text("utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def devices(self) -> dict[str, dict[str, str]]:
        """Give the devices that the plugin listed last: resource → device → health."""
        return {line["resource"]: line["devices"] for line in self._lines() if "devices" in line}

    def counts(self) -> dict[str, dict[str, int]]:
        """Give how many devices there are: resource → health → number."""
        return {resource: dict(Counter(health.values())) for resource, health in self.devices().items()}

    def wait_for_counts(self, wanted: dict[str, dict[str, int]]) -> None:
        """Wait until the plugin has listed so many devices, and no others.

        Raises AssertionError with what it listed instead.
        """
        with contextlib.suppress(AssertionError):
            wait_until("the plugin lists its devices", lambda: self.counts() == wanted, ANSWER_SECONDS, self.plugin)
        assert self.counts() == wanted, self.plugin.tail()

    def report_until(
        self, wanted: dict[str, dict[str, int]], gpu: Gpu, xid: int, part: MigInstance | None = None
    ) -> None:
        """Let a GPU report an XID until the plugin lists what is wanted.

        Once is not enough: the plugin does not say when it begins to wait for events, and earlier ones do not reach it.
        """

        def reported() -> bool:
            report_xid(self.machine, gpu, xid, part)
            return self.counts() == wanted

        with contextlib.suppress(AssertionError):
            wait_until("the plugin lists its devices", reported, ANSWER_SECONDS, self.plugin)
        assert self.counts() == wanted, self.plugin.tail()

    def allocate(self, resource: str, count: int) -> dict[str, Any]:
        """Ask as the kubelet does for a container; give the plugin's answer, or `error`."""
        before = len(self._answers())
        assert self._kubelet.stdin is not None
        self._kubelet.stdin.write(f"allocate {resource} {count}\n")
        self._kubelet.stdin.flush()
        wait_until("the plugin allocates", lambda: len(self._answers()) > before, ANSWER_SECONDS, self.plugin)
        return self._answers()[-1]

    def read_file(self, path: str) -> str:
        """Read a file of the plugin's root."""
        return (self._root / path).read_text("utf-8")

    def _answers(self) -> list[dict[str, Any]]:
        return [line.get("answer") or line for line in self._lines() if "devices" not in line]


@contextlib.contextmanager
def run_plugin(built: Path, world: World, folder: Path) -> Iterator[PluginRun]:
    """Start the device plugin for a world, with its settings, and stop it again."""
    machine, settings, devices, output = (folder / name for name in ("machine", "settings", "devices", "lines"))
    write_machine(world.machine, machine)
    settings.write_text(world.settings(), "utf-8")
    numbers = list_device_files(world.machine).items()
    devices.write_text("".join(f"{path} {major} {minor}\n" for path, (major, minor) in numbers), "utf-8")
    write_proc(world.machine, folder / "driver")
    words = ["sh", "-c", SETUP, "sh", str(folder / "driver"), str(devices), str(built / KUBELET)]
    with output.open("w") as lines, (folder / "kubelet.log").open("w") as log:
        unshare = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *UNSHARE, *words],
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=log,
            text=True,
        )
    with contextlib.ExitStack() as stack:
        stack.callback(_end, unshare)
        wait_until("the namespace has a process", lambda: _children(unshare.pid), ANSWER_SECONDS)
        (pid,) = _children(unshare.pid)
        root = Path(f"/proc/{pid}/root")
        enter = ["nsenter", f"--target={pid}", "--mount", "--pid", f"--root={root}", "setpriv", "--pdeathsig=KILL"]
        environment = make_environment(built, machine)
        wait_until("the kubelet's socket is there", (root / SOCKET).exists, ANSWER_SECONDS)
        if world.uses_mps:
            command = [*enter, str(built / "mps-control-daemon"), f"--config-file={settings}"]
            daemon = Process("mps-control-daemon", command, folder / "mps.log", environment)
            stack.callback(daemon.stop)
            wait_until("the MPS daemon is ready", (root / MPS_READY).exists, ANSWER_SECONDS, daemon)
        command = [*enter, str(built / "nvidia-device-plugin"), f"--config-file={settings}", "--pass-device-specs"]
        plugin = Process("device-plugin", command, folder / "log", environment)
        stack.callback(plugin.stop)
        yield PluginRun(plugin, unshare, root, output, machine)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
