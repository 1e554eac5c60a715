# SPDX-License-Identifier: Apache-2.0
"""`make cluster`: a cluster to try gpu-usher on, with real kubelets and mock GPUs; Ctrl-C removes it.

It builds what is missing, and starts itself once more in a sandbox, where the cluster is. The process outside has
made two listeners on loopback and hands them in (gateway.py): one leads to the API server, one to the web page. When
the process outside ends, with whatever signal, the sandbox ends with it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane import binaries, module_files
from tests.controlplane.processes import free_port
from tests.realnodes import components, images, nvidia, sandbox

ROOT = Path(__file__).parent.parent.parent
FOLDER = binaries.BUILT / "cluster"
"""A link to the folder with kubectl and the kubeconfig; it exists as long as the cluster does."""
PAGE = 8081
"""The port of the web page, as of `gpu-usher serve`."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What removes the cluster. SIGINT is set as well, since a shell lets its background jobs ignore it."""
END_SECONDS = 300
"""Bound on the end of the sandbox, mostly the removal of a gigabyte of images: 3 s, 70 s on a busy disk."""


def build() -> None:
    """Build and fetch what is not there yet.

    Raises SystemExit with the words of what failed.
    """
    for variable in binaries.VARIABLES:
        if os.environ.pop(variable, None):
            print(f"{variable} is left out: the cluster needs the kubelet, which only our own build has")
    print(
        f"control plane and kubelet: Kubernetes {module_files.kubernetes_version()}, {binaries.build().name}",
        flush=True,
    )
    print(f"containerd and runc: {components.fetch().name}", flush=True)
    print(f"NVIDIA's components: {nvidia.build().name}", flush=True)
    print(f"container images: {images.build().name}", flush=True)


def run(folder: Path, page: int) -> int:
    """Run the cluster until a signal comes; give the exit code."""
    if lack := sandbox.missing():
        raise SystemExit(f"cluster: {lack}")
    if folder.exists():
        raise SystemExit(f"cluster: {folder} is there: another cluster runs, or the folder is not ours")
    folder.unlink(missing_ok=True)  # a link that a killed cluster left
    listeners = [_listen(free_port()), _listen(page)]
    build()
    print("starting the cluster (less than a minute) …", flush=True)
    ours, theirs = socket.socketpair()
    child = _start(theirs, folder)
    try:
        theirs.close()
        socket.send_fds(ours, [b"listeners"], [listener.fileno() for listener in listeners])
        for listener in listeners:
            listener.close()
        return child.wait()
    except KeyboardInterrupt:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        print("\nremoving the cluster …", flush=True)
        return 0
    finally:
        state = folder.resolve().parent if folder.exists() else None
        ours.close()
        _end(child, folder, state)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise SystemExit(
            f"cluster: 127.0.0.1:{port}: {error.strerror}; choose another: make cluster PAGE=PORT"
        ) from error


def _start(control: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    """Start the sandbox: in a session of its own, so that Ctrl-C reaches this process alone; killed with this one."""
    command = [sys.executable, "-m", "tests.realnodes.playground_inside", str(folder)]
    return subprocess.Popen(
        ["setpriv", "--pdeathsig=KILL", sys.executable, "-m", "tests.realnodes.sandbox", *command],
        stdin=control.fileno(),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes], folder: Path, state: Path | None) -> None:
    """Wait for the sandbox, which ends once the connection to it is closed, and say what is left."""
    began = time.monotonic()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    folder.unlink(missing_ok=True)
    cgroups = [path for path in sandbox.CGROUPS.glob(f"*/gpu-usher-{child.pid}") if path.is_dir()]
    left = [str(path) for path in (*cgroups, state) if path and path.exists()]
    seconds = time.monotonic() - began
    print(f"left behind: {', '.join(left)}" if left else f"removed; nothing is left ({seconds:.1f} s)", flush=True)


def main(words: Sequence[str]) -> int:
    """Run the command; SIGTERM removes the cluster as Ctrl-C does."""
    parser = argparse.ArgumentParser(prog="python -m tests.realnodes.playground", description="Run a cluster.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where kubectl and the kubeconfig are put")
    parser.add_argument("--page", type=int, default=PAGE, help="the port of the web page on 127.0.0.1")
    arguments = parser.parse_args(words)
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    try:
        return run(arguments.folder.absolute(), arguments.page)
    except KeyboardInterrupt:
        print("\nstopped before there was a cluster")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
