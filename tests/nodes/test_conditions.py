# SPDX-License-Identifier: Apache-2.0
"""Conditions by which clouds and monitors report a fault of a node's GPUs: the table, the reader, the live watch."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.cluster.files import read_knowledge
from app.cluster.policy_watch import PolicyBook
from app.cluster.watched_kinds import WatchedKind, core_kinds
from app.knowledge.dcgm import GPUCondition
from app.kube.objects import NodeObject, ObjectCondition
from app.kube.records import read_record
from app.nodes.conditions import LONGEST_CONDITION_TEXT, MOST_CONDITIONS, BadCondition, read_bad_conditions
from app.nodes.reading import read_node
from app.values.errors import KnowledgeError, MalformedPod
from app.world.state import State
from tests.builders import knowledge, node, node_document, policy

XID_79 = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error", "message": "off the bus"}
DCGM_LOST = "failed to initialize DCGM: Error connecting to nv-hostengine: Host engine connection invalid/disconnected"
IMEX = "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:{} IMEX daemon status is -3 (not READY)"


def read(*conditions: Any) -> tuple[BadCondition, ...]:
    """Read conditions as the status of a node has them."""
    return read_bad_conditions([read_record(ObjectCondition, one) for one in conditions], knowledge())


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("AcceleratedHardwareReady", {"True", "Unknown"}, {"False"}),
        ("nvidia.com/GPUReady", {"True"}, {"False", "Unknown"}),
        ("GPUMissing", {"False", "Unknown"}, {"True"}),
        ("XIDError", {"False", "Unknown"}, {"True"}),
        ("NVLinkStatusInactive", {"False", "Unknown"}, {"True"}),
        ("XidCriticalError", {"False", "Unknown"}, {"True"}),
        ("GpuMemWatch", {"False", "Unknown"}, {"True"}),
        ("SysLogsGPUFallenOff", {"False", "Unknown"}, {"True"}),
        ("AMDGPUUnhealthy", {"False", "Unknown"}, {"True"}),
        ("GpuRowRemap", {"False", "Unknown"}, {"True"}),
        ("NebiusGPUError", {"False", "Unknown"}, {"True"}),
        ("GcmXidErrorsProblem", {"False", "Unknown"}, {"True"}),
        ("Ready", {"True", "False", "Unknown"}, set()),
    ],
)
def test_each_status_of_a_condition_is_judged_as_its_publisher_means_it(
    kind: str, good: set[str], bad: set[str]
) -> None:
    """F72."""
    read_as_bad = {status for status in good | bad if read({"type": kind, "status": status})}

    assert read_as_bad == bad


def test_every_row_has_a_source_and_a_remedy() -> None:
    """F72: the words are for people who have not read the publisher's documents."""
    assert all(row.meaning and row.remedy for row in knowledge().node_conditions.values())
    assert len(knowledge().node_conditions) >= 50


def test_words_of_the_publisher_are_shown_cut_and_printable() -> None:
    """F72: whoever may patch a node's status writes them."""
    (condition,) = read({**XID_79, "message": "GPU 0\x1b[31m\nlost" + "!" * 10_000})

    assert condition.words.startswith("AcceleratedHardwareReady=False (NvidiaXID79Error: GPU 0 [31m lost!!!")
    assert len(condition.words) < LONGEST_CONDITION_TEXT + 80


def test_most_conditions_of_a_node_are_a_bounded_number() -> None:
    """F72."""
    every = [{"type": row.name, "status": min(row.bad)} for row in knowledge().node_conditions.values()]

    assert len(read(*every)) == MOST_CONDITIONS


def with_conditions(conditions: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    "conditions", [None, [{}], [{"type": "GPUMissing"}], [{"type": "GPUMissing", "status": "False", "reason": None}]]
)
def test_condition_without_a_status_reports_nothing(conditions: Any) -> None:
    """F72, F125: a snapshot may leave out or write null for what is not known."""
    assert read_node(with_conditions(conditions), knowledge()).conditions == ()


@pytest.mark.parametrize(
    ("conditions", "problem"),
    [
        (3, "status.conditions: got an integer, wants a list"),
        ([3], "status.conditions[0]: got an integer, wants an object"),
        ([{"type": ["x"]}], "status.conditions[0].type: got a list, wants a string"),
    ],
)
def test_conditions_of_another_shape_are_named(conditions: Any, problem: str) -> None:
    """F72, F125."""
    with pytest.raises(MalformedPod) as raised:
        read_node(with_conditions(conditions), knowledge())

    assert str(raised.value) == problem


@pytest.mark.parametrize(
    ("condition", "severity"),
    [
        pytest.param(XID_79, GPUCondition.Ill, id="a fault of a GPU"),
        pytest.param({**XID_79, "reason": "DCGMError", "message": DCGM_LOST}, GPUCondition.Ailing, id="DCGM lost"),
        pytest.param({**XID_79, "reason": "DCGMError", "message": ""}, GPUCondition.Ailing, id="nothing else said"),
        pytest.param(
            {**XID_79, "reason": "DCGMError", "message": f"detected XID-79 on the instance; {DCGM_LOST}"},
            GPUCondition.Ill,
            id="DCGM lost after a fault, which the agent keeps in the message",
        ),
        pytest.param(
            {"type": "GpuNvlinkWatch", "status": "True", "reason": "GpuNvlinkWatchIsNotHealthy",
             "message": f"{IMEX.format(0)};{IMEX.format(1)};"},
            GPUCondition.Ailing,
            id="no IMEX daemon on an idle node",
        ),
        pytest.param(
            {"type": "GpuNvlinkWatch", "status": "True", "reason": "GpuNvlinkWatchIsNotHealthy",
             "message": f"{IMEX.format(0)};ErrorCode:DCGM_FR_NVLINK_DOWN GPU:1;"},
            GPUCondition.Ill,
            id="a link down beside it",
        ),
        pytest.param({"type": "IBLinkFlapping", "status": "True"}, GPUCondition.Ailing, id="the network"),
    ],
)  # fmt: skip
def test_condition_that_tells_of_the_monitor_alone_is_ailing(condition: dict[str, str], severity: GPUCondition) -> None:
    """F72: aws/eks-node-monitoring-agent#266, NVIDIA/aicr#2641."""
    assert [found.severity for found in read(condition)] == [severity]


def test_node_class_has_the_set_of_bad_conditions_and_not_their_words() -> None:
    """F72: nodes with the same faults share one class, and a new message makes no new one."""
    one, other = (node_document() for _ in range(2))
    one["status"]["conditions"] = [XID_79]
    other["status"]["conditions"] = [{**XID_79, "message": "another GPU"}]
    state = State(knowledge())
    classes = []
    for document in (one, other):
        state.put_node(document)
        classes.append(state.nodes["n"].node_class)

    assert classes[0] is classes[1]
    assert classes[0].bad_conditions == (("AcceleratedHardwareReady=False", GPUCondition.Ill),)
    assert "another GPU" in state.nodes["n"].conditions[0].words


def test_healthy_conditions_leave_the_class_as_it_is() -> None:
    """F72."""
    assert node(conditions={"GPUMissing": "False", "Ready": "True"}).node_class == node().node_class


def watched(tmp_path: Path) -> tuple[State, WatchedKind[Any]]:
    """Return a state and the watched kind that feeds nodes to it."""
    state = State(knowledge())
    (tmp_path / "p.yaml").write_text(policy("p", ""), "utf-8")
    kinds = core_kinds(state, PolicyBook(tmp_path, knowledge(), lambda: "2026-11-25"), "gpu-usher")
    return state, next(kind for kind in kinds if kind.name == "nodes")


def event(kind: WatchedKind[Any], document: dict[str, Any]) -> None:
    """Decode a node as the watch does, and put it."""
    fact = kind.read(msgspec.json.decode(json.dumps(document), type=NodeObject))
    kind.put(document["metadata"]["name"], "", fact)


def conditioned(*conditions: dict[str, str], beat: int = 0) -> dict[str, Any]:
    """Write a node with conditions, all with the time of a heartbeat."""
    document = node_document()
    document["status"]["conditions"] = [
        {**condition, "lastHeartbeatTime": f"2026-11-25T10:00:{beat:02}Z"}
        for condition in ({"type": "Ready", "status": "True"}, *conditions)
    ]
    return document


def test_heartbeat_of_conditions_changes_nothing(tmp_path: Path) -> None:
    """F72: a heartbeat rewrites all conditions, and no verdict is computed again for it."""
    state, kind = watched(tmp_path)
    event(kind, conditioned(XID_79))
    before, changes = state.nodes["n"], state.changes.generation

    event(kind, conditioned(XID_79, beat=30))
    event(kind, conditioned({"type": "MemoryPressure", "status": "True"}, XID_79, beat=40))

    assert state.nodes["n"] is before
    assert state.changes.generation == changes


def test_condition_that_turns_bad_and_good_again_changes_the_node(tmp_path: Path) -> None:
    """F72."""
    state, kind = watched(tmp_path)
    seen = []
    for condition in ({**XID_79, "status": "True"}, XID_79, {**XID_79, "status": "True"}):
        event(kind, conditioned(condition))
        seen.append(state.nodes["n"].node_class.faulty)

    assert seen == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "status", "guessed"),
    [
        ("GPUHealthy", "False", True),
        ("GPUHealthy", "True", False),
        ("GPUUnhealthy", "True", True),
        ("GPUUnhealthy", "False", False),
        ("example.com/NvidiaDriverReady", "False", True),
        ("NvidiaDriverNotReady", "True", True),
        ("GpuXidError", "True", True),
        ("NVLinkDown2", "True", True),
        ("RocmSmiFailed", "True", True),
        ("GPUHealthy", "Unknown", False),
        ("KernelDeadlock", "True", False),
        ("Ready", "False", False),
        ("NetworkUnavailable", "True", False),
        ("GPUDriverVersion", "True", False),
        ("x" * 10_000 + "gpuerror", "True", False),
    ],
)
def test_name_that_no_row_has_is_guessed_and_never_enforced(kind: str, status: str, guessed: bool) -> None:
    """F72: NVIDIA/gpu-operator issue 2137, people write checks of their own with node-problem-detector."""
    bad = read({"type": kind, "status": status})

    assert [(one.severity, one.publisher) for one in bad] == [(GPUCondition.Ailing, "")] * guessed


def test_operator_adds_a_condition_and_takes_one_away(tmp_path: Path) -> None:
    """F72, F81."""
    (tmp_path / "node_conditions.yaml").write_text(
        "publishers: [{name: us, remedy: call us}]\n"
        "conditions:\n"
        "  - {name: OurGPUCheck, publisher: us, bad: ['True'], severity: ill, meaning: our check fails}\n"
        "  - {name: GpuNvlinkWatch, remove: true}\n",
        "utf-8",
    )
    table = read_knowledge(tmp_path).node_conditions

    assert table["OurGPUCheck"].remedy == "call us"
    assert "GpuNvlinkWatch" not in table
    assert "GPUMissing" in table


def test_status_that_no_condition_has_is_an_error(tmp_path: Path) -> None:
    """F81: bad: [true] of YAML is no status."""
    (tmp_path / "node_conditions.yaml").write_text("conditions: [{name: GPUMissing, bad: [true]}]\n", "utf-8")

    with pytest.raises(KnowledgeError, match="GPUMissing: bad: got"):
        read_knowledge(tmp_path)
