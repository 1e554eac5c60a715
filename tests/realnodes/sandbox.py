# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.realnodes.sandbox COMMAND…`: run a command where real kubelets can run, and leave nothing behind.

The command and all that it starts live in namespaces of their own: network (with only a loopback), processes, mounts,
host name, IPC and cgroups. When the command ends, or is killed with any signal, the kernel ends every process in the
PID namespace, and mounts, bridges and addresses go with their namespaces. What the kernel does not remove, the cgroup
directories and the state folder, a small process outside of the namespaces removes once all others are gone.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
"""The hierarchies of cgroup v1 that kubelet and runc use; `systemd` is the one without a controller."""
PROGRAMS = ("setpriv", "unshare", "ip", "mount", "mknod", "apt-get", "dpkg-deb", "gcc")
STATE = "GPU_USHER_NODES_STATE"
"""The variable that names the state folder inside of the sandbox."""
SYSCTLS = ("vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops")
"""What the kubelet sets for the whole machine (k8s.io/kubernetes pkg/util/sysctl); written back afterwards."""
INOTIFY_INSTANCES = 28
"""Inotify instances of a cluster of three nodes, counted: containerd, the kubelet and the device plugin make them."""
REAP_SECONDS = 0.1
"""Between two looks for children, where PID 1 has none at the moment."""
REMOVE_SECONDS = 20
"""Bound on the removal of a cgroup, whose last processes may still be ending."""


def missing() -> str:
    """Say what this machine lacks for real nodes; empty if nothing."""
    if os.geteuid() != 0:
        return "Real nodes need root. Run `make e2e-nodes` as root."
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"Real nodes use {', '.join(lacking)}, which this machine lacks. Install them."
    absent = [name for name in CONTROLLERS if not (CGROUPS / name).is_dir()]
    if absent:
        return f"Real nodes use cgroup v1, and {CGROUPS} lacks {', '.join(absent)}. Mount these controllers."
    free = _free_inotify_instances()
    if free < INOTIFY_INSTANCES:
        wanted = f"Real nodes use {INOTIFY_INSTANCES} inotify instances, and {free} are free."
        return f"{wanted} Raise fs.inotify.max_user_instances."
    return _unshare_problem()


def _free_inotify_instances() -> int:
    """Count the inotify instances that root may still make: the limit counts those of all its processes."""
    used = 0
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            used += sum(os.readlink(link) == "anon_inode:inotify" for link in folder.iterdir())
    return int(Path("/proc/sys/fs/inotify/max_user_instances").read_text("ascii")) - used


def _unshare_problem() -> str:
    """Try the namespaces, a bridge and an overlay, as the sandbox uses them."""
    attempt = (
        "ip link set lo up && ip link add probe type bridge && ip link add p0 type veth peer name p1"
        " && mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/u /mnt/w /mnt/m"
        " && mount -t overlay overlay -o lowerdir=/mnt/a,upperdir=/mnt/u,workdir=/mnt/w /mnt/m"
    )
    done = subprocess.run([*UNSHARE, "sh", "-c", attempt], capture_output=True, text=True, timeout=30, check=False)
    problem = f"This machine allows no namespaces, bridges or overlayfs ({done.stderr.strip()[-200:]})."
    return f"{problem} Allow root to make them." if done.returncode else ""


UNSHARE = (
    *("setpriv", "--pdeathsig=KILL"),
    *("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--mount-proc"),
)
"""Both end as soon as their parent does, whatever signal it got."""


def run(command: Sequence[str]) -> int:
    """Run a command in the sandbox; give its exit code."""
    name = f"gpu-usher-{os.getpid()}"
    state = Path(tempfile.mkdtemp(prefix="gpu-usher-nodes-"))
    sysctls = {name: Path("/proc/sys", *name.split(".")).read_text("ascii").strip() for name in SYSCTLS}
    with _remover(name, state, sysctls):
        for cgroup in _make_cgroups(name):
            (cgroup / "cgroup.procs").write_text(str(os.getpid()), "ascii")
        inside = [sys.executable, "-m", "tests.realnodes.sandbox", "--inside", *command]
        environment = {**os.environ, STATE: str(state)}
        return subprocess.run([*UNSHARE, *inside], env=environment, check=False).returncode


@contextlib.contextmanager
def _remover(name: str, state: Path, sysctls: dict[str, str]) -> Iterator[None]:
    """Start the process that cleans up once every holder of a pipe is gone, also if this one is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.setsid()
        os.read(reading, 1)
        _remove(name, state, sysctls)
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        for controller in CONTROLLERS:  # this process leaves the cgroups, so that they can be removed
            (CGROUPS / controller / "cgroup.procs").write_text(str(os.getpid()), "ascii")
        os.close(writing)
        os.waitpid(child, 0)


def _make_cgroups(name: str) -> list[Path]:
    folders = [CGROUPS / controller / name for controller in CONTROLLERS]
    for folder in folders:
        folder.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / name / file).write_text((CGROUPS / "cpuset" / file).read_text("ascii"), "ascii")
    (CGROUPS / "memory" / name / "memory.use_hierarchy").write_text("1", "ascii")
    return folders


def _remove(name: str, state: Path, sysctls: dict[str, str]) -> None:
    end = time.monotonic() + REMOVE_SECONDS
    roots = [CGROUPS / controller / name for controller in CONTROLLERS]
    while any(root.is_dir() for root in roots) and time.monotonic() < end:
        for root in roots:
            for folder, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        time.sleep(0.05)
    for key, value in sysctls.items():
        Path("/proc/sys", *key.split(".")).write_text(value, "ascii")
    shutil.rmtree(state, ignore_errors=True)


def _inside(command: Sequence[str]) -> int:
    """Show this cgroup as the root of each hierarchy, and run the command as a child, so that PID 1 can reap."""
    _mount("--make-rprivate", "/")
    _mount("-t", "tmpfs", "cgroup", str(CGROUPS))
    for controller in CONTROLLERS:
        (CGROUPS / controller).mkdir()
        options = "none,name=systemd" if controller == "systemd" else controller
        _mount("-t", "cgroup", "-o", options, "cgroup", str(CGROUPS / controller))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    process = subprocess.Popen(command)  # kept: the deletion of a Popen object waits for a process that has ended
    return _reap(process.pid)


def _reap(awaited: int) -> int:
    """Wait for the children of PID 1, among them orphans of ended containers, until the awaited one ends."""
    while True:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.wait()
            if pid == awaited:
                return os.waitstatus_to_exitcode(status)
            continue
        time.sleep(REAP_SECONDS)


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["--reap"]:
        _reap(0)
    sys.exit(_inside(words[1:]) if words[:1] == ["--inside"] else run(words))
