# SPDX-License-Identifier: Apache-2.0
"""The decision log: replaying it gives the same decisions, and it has no secrets, stays small and blocks nobody."""

import asyncio
import json
import os
import random
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api import decision_recorder as recorder
from app.api.app import create_tls_app
from app.api.decision_recorder import Recorder, open_recorder
from app.api.decision_replay import DECISION_MEMBERS, decide_again
from app.api.wire import MOST_VALUES
from app.server.service import Service
from app.telemetry.metrics import Metrics
from app.values.errors import BadInput
from tests.builders import container, make_service, node_document, pod, policies, policy, review
from tests.running import running

SECRET = "hunter2"
STRICT = policies(
    policy("default", "action: Enforce, admission: {visibleDevices: Strip, privileged: Deny, bypass: Deny, "
           "maxGPUsPerPod: 4, runtimeClassName: nvidia, defaults: {sharedMemory: 8Gi, cpuPerGPU: \"4\"}, "
           "extendedResources: {requestsOnly: CopyToLimits, fractional: Deny}}"),
    policy("pinned", "priority: 9, match: {podSelector: {matchLabels: {team: red}}}, "
           "placement: {products: {allow: [H100]}}"),
)  # fmt: skip


def shared_gpu_nodes() -> list[dict[str, Any]]:
    """Write a small fleet, of which two nodes share their GPUs."""
    shared = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing",
              "nvidia.com/gpu.memory": "81559"}  # fmt: skip
    nodes = [node_document(f"h100-{number}") for number in range(4)]
    nodes += [node_document(f"t4-{number}", "Tesla-T4", "535.104.05") for number in range(4)]
    return nodes + [
        node_document(f"s-{number}", offers={"nvidia.com/gpu.shared": 4}, labels=shared) for number in range(2)
    ]


def shared_gpu_service(folder: Path, policy_set: Any = None) -> Service:
    """Make a service on that fleet, where the memory of shared GPUs is promised from one call to the next."""
    return make_service(folder, shared_gpu_nodes(), policy_set)


def posted(bodies: list[tuple[str, bytes]], service: Service, target: str) -> list[dict[str, Any]]:
    """Send calls one after the other with the recorder on, and return the recorded lines."""
    record = Recorder(target)
    answered(create_tls_app(service, Metrics(), recorder=record), bodies)
    record.stop()
    return [json.loads(line) for line in Path(target).read_text("utf-8").splitlines()]


def answered(app: Any, bodies: list[tuple[str, bytes]]) -> httpx.Response:
    """Send calls one after the other, and return the last answer."""

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="https://127.0.0.1") as client:
            return [await client.post(path, content=body) for path, body in bodies][-1]

    return asyncio.run(send())


def drawn(chance: random.Random) -> dict[str, Any]:
    """Draw a pod with much that decides, and much that does not."""
    amounts = {chance.choice(["nvidia.com/gpu", "nvidia.com/gpu.shared"]): chance.choice(["1", "2", "9", "500m"])}
    env = [{"name": "TOKEN", "value": SECRET}]
    env += [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}] if chance.random() < 0.2 else []
    env += [{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}] if chance.random() < 0.2 else []
    main = container(amounts, chance.choice([amounts, None]), env=env, command=["run", SECRET],
                     image=chance.choice(["nvcr.io/nvidia/pytorch:24.05-py3", "train:1"]),
                     volumeMounts=[{"name": "shm", "mountPath": chance.choice(["/dev/shm", "/data"])}],
                     securityContext={"privileged": chance.random() < 0.1, "runAsUser": 1000})  # fmt: skip
    wishes = {"products": chance.choice(["H100", "T4", "nonsense*"]), "cuda": "12.2", "gpu-memory": "30Gi",
              "sharing": chance.choice(["Shared", "Exclusive"])}  # fmt: skip
    annotations = {key: value for key, value in wishes.items() if chance.random() < 0.3}
    made = pod(
        container(name="side", env=env),
        main,
        annotations=annotations,
        volumes=[{"name": "shm", "secret": {"secretName": SECRET}}],
    )
    made["metadata"] |= {"uid": f"u-{chance.randrange(40)}", "labels": {"team": chance.choice(["red", "blue"])}}
    made["metadata"].setdefault("annotations", {})["note"] = SECRET
    if chance.random() < 0.2:
        made["spec"]["tolerations"] = [{"operator": "Exists"}]
    if chance.random() < 0.1:
        made["spec"] |= {"nodeName": "h100-1"}
    return made


def questions(count: int) -> Iterator[tuple[str, bytes]]:
    """Draw calls: reviews of pods and templates, and the calls of kube-scheduler."""
    chance = random.Random(7)
    names = [f"{make}-{number}" for make in ("h100", "t4", "s", "gone") for number in range(4)]
    for _ in range(count):
        made, what = drawn(chance), chance.random()
        if what < 0.4:
            yield f"/{chance.choice(['mutate', 'validate'])}", json.dumps(review(made)).encode()
        elif what < 0.5:
            yield "/mutate", json.dumps(template(made, drawn(chance))).encode()
        elif what < 0.6:
            victims = {"s-0": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 0}}
            yield "/scheduler/preempt", json.dumps({"Pod": made, "NodeNameToMetaVictims": victims}).encode()
        else:
            question = {"Pod": made, "NodeNames": chance.sample(names, chance.randrange(1, len(names)))}
            yield f"/scheduler/{chance.choice(['filter', 'prioritize'])}", json.dumps(question).encode()


def template(made: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap pods as the old and the new template of a Deployment."""
    old, new = ({"metadata": {"name": "d"}, "spec": {"template": template}} for template in (before, made))
    resource = {"group": "apps", "version": "v1", "resource": "deployments"}
    return review(new, operation="UPDATE", oldObject=old, resource=resource, kind={**resource, "kind": "Deployment"})


@pytest.mark.parametrize("policy_set", [None, STRICT], ids=["shipped", "strict"])
def test_lines_replayed_on_the_same_snapshot_and_policies_decide_the_same(tmp_path: Path, policy_set: Any) -> None:
    """F94: reviews, templates and every verb, with promises of memory that depend on earlier calls."""
    lines = posted(list(questions(150)), shared_gpu_service(tmp_path, policy_set), str(tmp_path / "log"))

    fresh = shared_gpu_service(tmp_path, policy_set)
    differing = [line for line in lines if decide_again(line, fresh) != {key: line[key] for key in DECISION_MEMBERS}]

    assert len(lines) == 150
    assert {line["decision"] for line in lines} >= {"denied", "patched", "allowed", "answered", "none_fits"}
    assert not differing


def test_replay_tells_another_fleet(tmp_path: Path) -> None:
    """On another fleet the replay must differ, or the test above proves nothing."""
    lines = posted(list(questions(100)), shared_gpu_service(tmp_path), str(tmp_path / "log"))
    other = make_service(tmp_path, [node_document("t4-0", "Tesla-T4")])

    assert any(decide_again(line, other) != {key: line[key] for key in DECISION_MEMBERS} for line in lines)


def test_nothing_is_written_down_that_decides_nothing(tmp_path: Path) -> None:
    """F94: no command, no secret's name, no variables but NVIDIA's, and no annotations but ours."""
    posted(list(questions(100)), shared_gpu_service(tmp_path), str(tmp_path / "log"))

    assert SECRET not in (tmp_path / "log").read_text("utf-8")


def test_whole_nodes_are_recorded_by_name(tmp_path: Path) -> None:
    question = {"Pod": pod(), "Nodes": {"items": [node_document("h100-0")]}}

    line = posted(
        [("/scheduler/filter", json.dumps(question).encode())], shared_gpu_service(tmp_path), str(tmp_path / "log")
    )[0]

    assert (line["nodes"], line["whole_nodes"]) == (["h100-0"], True)


def test_whole_victims_are_recorded_by_uid(tmp_path: Path) -> None:
    victims = {"h100-0": {"Pods": [pod()], "NumPDBViolations": 1}}
    body = json.dumps({"Pod": pod(), "NodeNameToVictims": victims}).encode()

    line = posted([("/scheduler/preempt", body)], shared_gpu_service(tmp_path), str(tmp_path / "log"))[0]

    assert line["victims"] == {"h100-0": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 1}}


def test_the_file_is_its_owners_alone_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F94: the log is rotated by size, and the oldest file is deleted."""
    monkeypatch.setattr(recorder, "FILE_BYTES", 10_000)

    posted(list(questions(200)), shared_gpu_service(tmp_path), str(tmp_path / "log"))

    files = sorted(tmp_path.glob("log*"))
    assert [file.name for file in files] == ["log", "log.1", "log.2", "log.3"]
    assert all(file.stat().st_size <= 10_000 for file in files)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_review_with_too_many_values_is_denied_with_the_log_on(tmp_path: Path) -> None:
    """F94: it is not read, and so not recorded; failurePolicy Ignore must not let the pod in."""
    body = json.dumps(review(pod(annotations={str(number): "" for number in range(MOST_VALUES)}))).encode()
    record = Recorder(str(tmp_path / "log"))

    answer = answered(create_tls_app(shared_gpu_service(tmp_path), Metrics(), recorder=record), [("/mutate", body)])
    record.stop()

    assert (answer.status_code, answer.json()["response"]["allowed"]) == (200, False)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="There is no /dev/full, to which every write fails. The test runs on Linux."
)
def test_a_full_disk_is_counted_and_nobody_notices(tmp_path: Path) -> None:
    """Fault 49."""
    record = Recorder(str(tmp_path / "log"))
    full = os.open("/dev/full", os.O_WRONLY)
    stream = record._handler.stream
    assert stream is not None
    os.dup2(full, stream.fileno())
    os.close(full)
    app = create_tls_app(shared_gpu_service(tmp_path), Metrics(), recorder=record)

    status = answered(app, [("/mutate", json.dumps(review(pod())).encode())]).status_code
    record.stop()

    assert status == 200
    assert record.unrecorded == 1


def test_recorder_is_off_unless_asked_for(tmp_path: Path) -> None:
    assert make_service(tmp_path).settings.decision_log == "off"
    assert open_recorder("off") is None


def test_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--decision-log"):
        open_recorder(str(tmp_path / "none" / "log"))


def test_a_running_service_records(tmp_path: Path) -> None:
    """F94: this is the option --decision-log."""
    target = tmp_path / "log"
    with running(make_service(tmp_path, decision_log=str(target))) as clients:
        clients.tls.post("/mutate", json=review(pod()))
        clients.tls.post("/mutate", content=b"{")

    assert [json.loads(line)["decision"] for line in target.read_text("utf-8").splitlines()] == ["patched"]
