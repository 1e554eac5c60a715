# SPDX-License-Identifier: Apache-2.0
"""`make cluster`: started as a person would, used with the commands that it prints, and gone after Ctrl-C.

What is left of one that is killed is left of its sandbox (test_sandbox.py).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.controlplane.binaries import find_binaries
from tests.controlplane.processes import Process, free_port, wait_until
from tests.explain.questions import answer_lines
from tests.realnodes import components, images, nvidia, sandbox
from tests.realnodes.cluster_questions import ask_all

START_SECONDS = 240
"""Bound on the start, which takes 31 s to 42 s on two cores with other work beside it."""
SOON_SECONDS = 60
END_SECONDS = 300
"""Bound on the end, mostly the removal of a gigabyte of images: 3 s, 70 s on a busy disk."""
OF_AN_INSTALLATION = {"NoReadyEndpoint", "ReplicasUnavailable", "Certificate", "ExemptionsUnguarded", "RightsMissing"}
"""What doctor would say of gpu-usher itself; here it is a process beside the API server, and answers."""
EXAMPLES = Path(__file__).with_name("examples")


@dataclass(frozen=True, slots=True)
class Playground:
    """A running cluster: its process, the link to its commands, the port of its page, and its sandbox."""

    process: Process
    folder: Path
    page: int
    sandbox: int
    state: Path

    def run(self, program: str, *words: str, code: int = 0, kubeconfig: str = "") -> str:
        """Run one of its commands, with the test's folder as home directory, and give what it says."""
        done = subprocess.run(
            [str(self.folder / program), *words],
            capture_output=True,
            text=True,
            timeout=SOON_SECONDS,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), "KUBECONFIG": kubeconfig},
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr * bool(kubeconfig)

    def left(self) -> list[str]:
        """List what is left of it: cgroups, the state folder, processes that name the state folder, and mounts."""
        cgroups = [str(path) for path in sandbox.CGROUPS.glob(f"*/gpu-usher-{self.sandbox}")]
        of_processes = [*_read_all("cmdline", str(self.state)), *_read_all("mounts", str(self.state))]
        return [*cgroups, *([str(self.state)] if self.state.exists() else []), *of_processes]


def _read_all(file: str, words: str) -> Iterator[str]:
    for path in Path("/proc").glob(f"[0-9]*/{file}"):
        with contextlib.suppress(OSError):
            if words in path.read_text("utf-8", "replace"):
                yield str(path)


@pytest.fixture
def playground(tmp_path: Path) -> Iterator[Playground]:
    """The cluster, ready to use, in a sandbox of its own also where the tests run in one. Skips where it cannot run."""
    parts = (find_binaries(), components.find_programs(), images.find(), nvidia.find())
    if reasons := [why for why in (sandbox.missing(), *parts) if why and isinstance(why, str)]:
        pytest.skip(reasons[0])
    folder, page = tmp_path / "cluster", free_port()
    command = [sys.executable, "-m", "tests.realnodes.playground", f"--folder={folder}", f"--page={page}"]
    process = Process("playground", command, tmp_path / "log")
    try:
        wait_until("the cluster is ready", lambda: "examples" in process.log.read_text(), START_SECONDS, process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()
        yield Playground(process, folder, page, int(children[0]), folder.resolve().parent)
    finally:
        process.stop()


def wait_for_words(words: str, read: Callable[[], str]) -> None:
    """Wait until an output holds some words."""
    wait_until(words, lambda: words in read(), SOON_SECONDS)


def _printed(playground: Playground, words: str, text: str) -> str:
    """Run a command of the cluster with an input; return all that it prints, whatever its exit code."""
    program, *rest = words.split()
    done = subprocess.run(
        [str(playground.folder / program), *rest],
        input=text,
        capture_output=True,
        text=True,
        timeout=SOON_SECONDS,
        check=False,
        env={"PATH": f"{playground.folder}:{os.environ['PATH']}", "HOME": str(playground.folder.parent)},
    )
    return done.stdout + done.stderr


def test_newcomer_runs_a_gpu_pod_and_ctrl_c_leaves_nothing(playground: Playground) -> None:
    """F7, F83, F84: by the commands that `make cluster` prints; the page is open, questions are answered."""
    assert playground.run("kubectl", "get", "nodes", "--no-headers").count(" Ready") == 25

    playground.run("kubectl", "apply", "-f", str(EXAMPLES))
    for name in ("whole-gpu", "mig-slice", "product-pin"):
        wait_for_words("Running", lambda name=name: playground.run("kubectl", "get", "pod", name))  # type: ignore[misc]
    wait_for_words("nvidiactl", lambda: playground.run("kubectl", "logs", "whole-gpu"))
    wait_for_words("3/3", lambda: playground.run("kubectl", "get", "deployment", "inference"))
    assert "nvidia-cap" in playground.run("kubectl", "exec", "mig-slice", "--", "ls", "/dev/nvidia-caps")
    assert "CUDA driver too old" in playground.run("gpu-usher", "explain", "default/newer-cuda", code=1)
    assert "allow NVIDIA-H100" in playground.run("gpu-usher", "explain", "default/too-many", code=1)
    found = {finding["check"] for finding in json.loads(playground.run("gpu-usher", "doctor", "-o", "json", code=1))}
    assert not found & OF_AN_INSTALLATION
    answers = ask_all(lambda words, text: _printed(playground, words, text))
    wrong = {name: output for name, (question, output) in answers.items() if not all(answer_lines(question, output))}
    assert not wrong, wrong
    tenant = str(playground.folder / "tenant.kubeconfig")
    assert "cannot list resource" in playground.run("kubectl", "get", "nodes", code=1, kubeconfig=tenant)
    wait_for_words("True", lambda: playground.run("kubectl", "get", "apiservice", "v1alpha1.explain.gpu-usher.io"))
    assert "thumbnails" in playground.run("kubectl", "get", "explanations", "-n", "vision", kubeconfig=tenant)
    assert "fits on none" in playground.run("gpu-usher", "explain", "-n", "vision", code=1, kubeconfig=tenant)
    other = playground.run("kubectl", "config", "view", "--minify", kubeconfig="/etc/other")
    assert "KUBECONFIG is not taken" in other
    assert "name: admin" in other
    page = httpx.get(f"http://127.0.0.1:{playground.page}/", trust_env=False, timeout=SOON_SECONDS)
    assert (page.status_code, "node-1" in page.text) == (200, True)

    os.kill(playground.process.pid, signal.SIGINT)
    wait_until("it has ended", lambda: not playground.process.running, END_SECONDS)
    assert playground.process.stop() == 0
    assert "nothing is left" in playground.process.tail(1)
    assert (playground.left(), playground.folder.is_symlink()) == ([], False)
