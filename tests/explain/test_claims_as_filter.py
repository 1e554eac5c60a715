# SPDX-License-Identifier: Apache-2.0
"""`explain` judges pods with claims on nodes of several kinds of devices as the verb filter does."""

import random
from typing import Any

import pytest

from app.explain.survey import NodeJudge, read_scheduled_pod
from app.placement.engine import judge
from app.values.reasons import Reason
from app.world.world import world_of
from tests.builders import policies
from tests.dra.recorded_worlds import WORLDS, cases, claim_and_pod, objects_of, state_of

WISHES = {
    "gpu-usher.io/cuda": ["12.4", "12.6", "13.0"],
    "gpu-usher.io/products": ["H100", "A100", "GB200", "H100, A100"],
    "gpu-usher.io/gpu-memory": ["20Gi", "60Gi", "100Gi"],
    "gpu-usher.io/mig-profile": ["1g.10gb", "3g.40gb"],
    "gpu-usher.io/compute-capability": ["8.0", "9.0"],
}
CLASSES = ("gpu.nvidia.com", "mig.nvidia.com", "any.gpu.nvidia.com")


def random_fleet(draw: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """Draw a recorded world, whose second node may have the devices of the first one beside its own."""
    world = draw.choice(WORLDS)
    slices = [item for item in objects_of(world) if item["kind"] == "ResourceSlice"]
    copies: list[dict[str, Any]] = []
    for item in draw.sample(slices, min(len(slices), draw.randrange(3))):
        pool = {**item["spec"]["pool"], "name": "copied", "resourceSliceCount": 1}
        node = draw.choice(["node-1", "node-2"])
        if "devices" in item["spec"] and not any("consumesCounters" in one for one in item["spec"]["devices"]):
            spec = {**item["spec"], "pool": pool, "nodeName": node}
            copies.append({**item, "metadata": {"name": f"copied-{len(copies)}"}, "spec": spec})
    return world, copies[:1]


@pytest.mark.parametrize("seed", range(40))
def test_explain_refuses_for_claims_just_where_filter_does(seed: int) -> None:
    """F83, S13."""
    draw, recorded = random.Random(seed), tuple(cases())
    world, copies = random_fleet(draw)
    for _ in range(6):
        claim, pod = claim_and_pod(draw.choice(recorded))
        if draw.random() < 0.5:
            request = {"name": "r", "exactly": {"deviceClassName": draw.choice(CLASSES), "count": draw.choice([1, 2])}}
            claim["spec"] = {"devices": {"requests": [request]}}
        wishes = draw.sample(sorted(WISHES), draw.randrange(3))
        pod["metadata"] = {**pod["metadata"], "annotations": {key: draw.choice(WISHES[key]) for key in wishes}}
        if draw.random() < 0.2:
            pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
        state = state_of(world, claim, *copies)
        snapshot = world_of(state, policies())

        scheduled = read_scheduled_pod(pod, snapshot, admit=False)

        judged = NodeJudge(scheduled, snapshot.used, None)
        for node in state.nodes.values():
            by_filter = judge(scheduled.demand, node, recount=True)
            reasons = [each for each in judged.objections(node) if isinstance(each, Reason)]
            by_explain = [each for each in reasons if each not in scheduled.review_result.reasons]
            assert (by_filter is None) == (not by_explain), (node.name, by_filter)
