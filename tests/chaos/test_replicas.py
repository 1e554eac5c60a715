# SPDX-License-Identifier: Apache-2.0
"""Replicas as processes: one is killed under load, answers are compared, policies differ or are too new."""

import contextlib
import json
import re
import shutil
import signal
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.cluster.files import shipped_policies
from tests.authorities import make_authority, write_leaf
from tests.builders import make_service, pod, policy, review
from tests.controlplane.processes import wait_until
from tests.haproxy import HAPROXY, haproxy
from tests.load import Load, Tally, loading
from tests.replicas import Replica
from tests.running import running

RATE = 100.0
QUIET = 300
"""Answers in a row without a failure: at this rate twice the proxy's lag, after which it must have noticed."""
SOON_SECONDS = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = make_authority("only")
    write_leaf(authority, tmp_path)
    (tmp_path / "ca.crt").write_text(authority.pem, "ascii")
    return tmp_path


@contextlib.contextmanager
def two_replicas(folder: Path, *words: tuple[str, ...]) -> Iterator[list[Replica]]:
    """Run two replicas; `words` are more flags for each."""
    with contextlib.ExitStack() as stack:
        made = []
        for name, more in zip(("one", "two"), words or ((), ()), strict=True):
            made.append(Replica(name, folder, folder, 0, words=more))
            stack.callback(made[-1].stop)
        yield made


def wait_without_failures(tally: Tally) -> None:
    """Wait for a number of answers in a row without a failure."""
    since = [tally.answered, tally.failures.total()]

    def long_enough() -> bool:
        if tally.failures.total() != since[1]:
            since[:] = [tally.answered, tally.failures.total()]
        return tally.answered >= since[0] + QUIET

    wait_until("no more failures", long_enough, SOON_SECONDS)


@pytest.mark.long
def test_killed_replica_costs_what_was_in_its_hands_and_no_more(folder: Path) -> None:
    """Fault 38: the other answers without a failure once the proxy knows, and the first comes back without one."""
    program = HAPROXY.find()
    if isinstance(program, str):
        pytest.skip(program)
    trusted = (folder / "ca.crt").read_text("ascii")
    with (
        two_replicas(folder) as replicas,
        haproxy(program, folder, [(replica.tls, replica.ops) for replica in replicas]) as port,
        loading(Load(RATE, lambda: port, lambda: trusted)) as tally,
    ):
        wait_without_failures(tally)
        before = tally.failures.total()
        replicas[0].process.stop(signal.SIGKILL)
        wait_without_failures(tally)
        noticed = tally.failures.total()
        replicas[0].revive()
        wait_without_failures(tally)
        after = tally.failures.total()

    assert (before, after - noticed) == (0, 0)
    assert noticed < tally.answered / 4
    assert not [what for what in tally.failures if "answer" in what], tally.failures


def hashes(replica: Replica, folder: Path) -> tuple[str, set[str]]:
    """Return the policy hash that an answer has for the audit log, and those of /metrics."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    url = f"https://127.0.0.1:{replica.tls}/mutate"
    response = httpx.post(url, json=review(pod()), verify=context, trust_env=False).json()["response"]
    with urllib.request.urlopen(f"http://127.0.0.1:{replica.ops}/metrics", timeout=20) as read:
        metrics = read.read().decode()
    return response["auditAnnotations"]["policy-hash"], set(re.findall(r'policy_info\{hash="(\w+)"', metrics))


def test_replicas_with_different_policies_can_be_told_apart(folder: Path) -> None:
    """Fault 62: every answer, every scrape and the log have the policy hash."""
    other = folder / "policies"
    shutil.copytree(shipped_policies(), other)
    (other / "one-more.yaml").write_text(policy("one-more", "priority: 5, admission: {maxGPUsPerPod: 4}"), "utf-8")
    with two_replicas(folder, (), ("--policies", str(other))) as replicas:
        (first, of_first), (second, of_second) = (hashes(replica, folder) for replica in replicas)
        logged = [re.findall(r"policy_hash='(\w+)'", replica.process.log.read_text("utf-8")) for replica in replicas]

    assert first != second
    assert (of_first, of_second) == ({first}, {second})
    assert logged == [[first], [second]]


def test_all_files_gone_leaves_the_last_good_policies(tmp_path: Path) -> None:
    """Fault 14: a mount that is empty for a moment must not remove a policy."""
    mounted = tmp_path / "policies"
    mounted.mkdir()
    (mounted / "strict.yaml").write_text(policy("strict", "admission: {maxGPUsPerPod: 0}"), "utf-8")
    with running(make_service(tmp_path / "certs", policies=mounted)) as clients:

        def state() -> tuple[bool, str, str | None]:
            policies = clients.ops.get("/readyz").json()["policies"]
            allowed = clients.tls.post("/mutate", json=review(pod())).json()["response"]["allowed"]
            return allowed, policies["hash"], policies["error"]

        before = state()
        (mounted / "strict.yaml").unlink()
        wait_until("it is seen", lambda: state()[2] is not None, SOON_SECONDS)
        without = state()
        mounted.rmdir()
        wait_until("the folder is missed", lambda: "No such file" in str(state()[2]), SOON_SECONDS)
        nowhere = state()
        ready = clients.ops.get("/readyz").status_code

    assert before[0] is False
    assert (without[:2], nowhere[:2], ready) == (before[:2], before[:2], 200)
    assert "wants at least one policy" in json.dumps(without)
