# SPDX-License-Identifier: Apache-2.0
"""Right sizes against trying every unit of a fleet, with the patch applied to a template as kubectl would."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from app.cli.plan_pods import find_right_sizes
from app.cluster.snapshot import fill
from app.demo.notation import DemoFleet
from app.demo.sample_fleets import objects_of
from app.explain.pending_pod import explain
from app.kube.pods import read_pod
from app.nodes.conditions import PRODUCT
from app.usage.table import GPUUse
from app.values.computations import finish
from app.whatif.right_size import RightSizes
from app.world.state import State
from app.world.world import world_of
from tests.builders import knowledge, shipped, state_of
from tests.usage.polls import hold

Document = dict[str, Any]
PUZZLES: dict[str, Document] = yaml.safe_load(Path(__file__).with_name("right_size_puzzles.yaml").read_text("utf-8"))
HOURS = 48
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory": 81920, "compute": "8.0"}
NEW = {"driver": "550.54.15", "cuda": "12.4"}
ENGINES = [1, 0, 0, 0, 0]


def sliced(gpu: Document, **more: Any) -> Document:
    """Write a node of one GPU in slices 2 x 1g.10gb, 2g.20gb, 3g.40gb."""
    memory = {"1g.10gb": (2, 9856, 14), "2g.20gb": (1, 19968, 28), "3g.40gb": (1, 40192, 42)}
    slices = {
        name: {"count": count, "memory": mib, "multiprocessors": processors, "engines": ENGINES}
        for name, (count, mib, processors) in memory.items()
    }
    mig = {"strategy": "mixed", "slices": slices}
    return {"names": ["mig-0"], "gpus": 1, "gpu": gpu, "mig": mig, **NEW, **more}


POOLS: dict[str, Document] = {
    "whole": {"names": ["a100-0"], "gpus": 4, "gpu": A100, **NEW},
    "mig": sliced(A100),
    "mig-cordoned": sliced(A100, cordoned=True),
    "mig-tainted": sliced(A100, taints=["team=b:NoSchedule"]),
    "mig-old": sliced(A100, driver="450.80.02", cuda="11.0"),
    "mig-h100": sliced({"name": "NVIDIA H100 80GB HBM3", "memory": 81559, "compute": "9.0"}, names=["h100-0"]),
    "shared": {"names": ["shared-0"], "gpus": 1, "gpu": A100,
               "sharing": {"strategy": "time-slicing", "replicas": 4, "renamed": True}, **NEW},
    "t4": {"names": ["t4-0"], "gpus": 2, "gpu": {"name": "Tesla T4", "memory": 15360, "compute": "7.5"}, **NEW},
}  # fmt: skip


def pools(puzzle: Document) -> list[Document]:
    """List the pools of a puzzle; a copy has the name with a number."""
    some = [copy.deepcopy(POOLS[name]) for name in puzzle["pools"]]
    copies = [copy.deepcopy(POOLS[name]) for name in puzzle.get("copies", ())]
    return [*some, *({**pool, "names": [f"{pool['names'][0]}-copy"]} for pool in copies)]


def pods(puzzle: Document) -> list[Document]:
    """List the pods of a puzzle, the workload train first."""
    asks, node = puzzle.get("asks", {"nvidia.com/gpu": 1}), puzzle.get("node", "a100-0")
    train = {"name": "train", "node": node, "asks": asks, "image": puzzle.get("image", "train:1")}
    return [train, *puzzle.get("pods", ())]


def workload(pod: Document) -> str:
    name = f"team-b/{pod['name']}"
    return name[:-2] if name[-2:] in ("-0", "-1") else name


def use_of(puzzle: Document, objects: list[Document]) -> GPUUse:
    """Make the use of two days in which every pod with a peak has it once."""
    labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in objects if one["kind"] == "Node"}
    holds = []
    for number, pod in enumerate(pods(puzzle)):
        peak = puzzle["peaks"].get(workload(pod))
        if peak and pod.get("node"):
            profile = next(iter(pod["asks"])).partition("/mig-")[2]
            device = f"GPU-{number}", "1" if profile else ""
            holds.append(hold(pod["name"], HOURS, active=0.1, namespace="team-b", node=pod["node"], device=device,
                              profile=profile, model=labels[pod["node"]][PRODUCT], memory_mib=peak["memory"],
                              part=peak["share"]))  # fmt: skip
    return GPUUse(0, HOURS * 3600, 60, tuple(holds))


def world(puzzle: Document) -> tuple[State, list[Document]]:
    fleet = {"description": "a puzzle", "pools": pools(puzzle), "pods": pods(puzzle)}
    objects = list(objects_of(msgspec.convert(fleet, DemoFleet)))
    state = state_of(objects)
    return state, objects


def played(puzzle: Document) -> RightSizes:
    state, objects = world(puzzle)
    return find_right_sizes(objects, state, shipped(), use_of(puzzle, objects))


Unit = tuple[str, str, int, float, int]
"""Resource, product, MiB, part of the GPU, and free units."""


def units(puzzle: Document) -> Iterator[Unit]:
    """List the units of the open nodes by the notation of the fleet alone, with those that other pods hold taken."""
    for pool in pools(puzzle):
        node, product = pool["names"][0], "-".join(pool["gpu"]["name"].split())
        rows: list[tuple[str, int, float, int]] = []
        if "mig" in pool:
            rows = [(f"nvidia.com/mig-{name}", row["memory"], int(name[0]) / 7, row["count"])
                    for name, row in pool["mig"]["slices"].items()]  # fmt: skip
        elif "sharing" in pool:
            replicas = pool["sharing"]["replicas"]
            rows = [("nvidia.com/gpu.shared", pool["gpu"]["memory"] // replicas, 1 / replicas, pool["gpus"] * replicas)]
        else:
            rows = [("nvidia.com/gpu", pool["gpu"]["memory"], 1.0, pool["gpus"])]
        for resource, memory, part, count in rows:
            held = sum(pod["asks"].get(resource, 0) for pod in pods(puzzle) if pod.get("node") == node)
            free = 0 if node in puzzle.get("closed", ()) else count - held
            yield resource, product, memory, part, free


def tried(puzzle: Document, name: str) -> str | None:
    """Try every unit for a workload, and give the smallest that carries its peak and is free for all its pods."""
    members = [pod for pod in pods(puzzle) if workload(pod) == name]
    resource = next(iter(members[0]["asks"]))
    table, peak = list(units(puzzle)), puzzle["peaks"][name]
    own = next(unit for unit in table if unit[0] == resource and (unit[0] != "nvidia.com/gpu" or "A100" in unit[1]))
    needed = min(own[3], peak["share"] * own[3] * 1.2)
    large = [unit for unit in table if unit[2] >= peak["memory"] * 1.2 and unit[3] >= needed and unit[1] == own[1]]
    good = [unit for unit in large if unit[2] < own[2]]
    free = {unit[:2]: sum(other[4] for other in good if other[:2] == unit[:2]) for unit in good}
    fitting = [unit for unit in good if free[unit[:2]] >= len(members)]
    best = min(fitting, key=lambda unit: (unit[2], unit[0]), default=None)
    return f"{best[0]} of {best[1]}" if best else None


@pytest.mark.parametrize("name", PUZZLES)
def test_proposal_is_the_smallest_unit_of_all_that_there_are(name: str) -> None:
    """F143: the optimum by brute force, and as the puzzle says it."""
    puzzle = PUZZLES[name]
    result = played(puzzle)
    to = {one.workload: one.to for one in result.proposals}
    for workload_name, expected in puzzle["expect"].items():
        if expected in ("unknown", "several"):
            assert workload_name in {unsized.workload for unsized in result.undecided}
            continue
        best = tried(puzzle, workload_name)
        assert to.get(workload_name) == best
        assert expected is None if best is None else best.startswith(expected)
        assert (workload_name in result.right) is (expected is None)
    assert [start for one in result.proposals for start in one.would_start] == puzzle.get("starts", [])


def merged(document: Any, patch: Any) -> Any:
    """Apply a strategic merge patch of the fields that we patch: containers by name, null removes."""
    if isinstance(patch, list):
        changes = {item["name"]: item for item in patch}
        return [merged(item, changes.get(item["name"], {})) for item in document]
    if not isinstance(patch, dict):
        return patch
    whole = dict(document or {})
    for key, value in patch.items():
        if value is None:
            whole.pop(key, None)
        else:
            whole[key] = merged(whole.get(key), value)
    return whole


@pytest.mark.parametrize("name", PUZZLES)
def test_patch_makes_a_pod_that_fits(name: str) -> None:
    """F143: explain says so of the patched pod, once the old one is gone; and only on GPUs of the proven product."""
    puzzle = PUZZLES[name]
    for proposal in played(puzzle).proposals:
        _, objects = world(puzzle)
        members = [one for one in objects if one["kind"] == "Pod" and workload_of_object(one) == proposal.workload]
        state, old = State(knowledge()), members[0]
        fill(state, [one for one in objects if one not in members])
        new = merged({key: value for key, value in old.items() if key != "status"}, proposal.patch)
        del new["spec"]["nodeName"]
        explanation = finish(explain(new, world_of(state, shipped()), by_node=True))
        fitting = {state.nodes[verdict.node].labels[PRODUCT] for verdict in explanation.verdicts or () if verdict.fits}
        assert {product.removesuffix("-SHARED") for product in fitting} == {proposal.to.partition(" of ")[2]}
        assert [str(amount) for amount in read_pod(new).amounts().values()] == ["1"]
        assert set(read_pod(new).amounts()) == set(proposal.takes)


def workload_of_object(document: Document) -> str:
    return workload({"name": document["metadata"]["name"]})


def test_there_are_more_than_twenty_puzzles() -> None:
    """F143."""
    assert len(PUZZLES) > 20
