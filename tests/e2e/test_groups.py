# SPDX-License-Identifier: Apache-2.0
"""Gangs on the real scheduler with the gates of PodGroups on (F150); tests/e2e/gangs.py places 200 by hand."""

import json
import ssl
import time
from collections.abc import Iterator

import httpx
import pytest

from app.placement.engine import class_for_demand, judge_class
from tests.builders import demand, state_of
from tests.controlplane.kubectl import Object
from tests.controlplane.module_files import minors_with_groups
from tests.e2e.gangs import GPU, SPACE, Gang, Stage, agree, compare, draw, fleet, member, programs_of, stage
from tests.e2e.mixed import call_extender
from tests.e2e.stage import OURS, gpu_pod

COMPARED, ANNOTATED = range(300, 306), range(400, 406)


@pytest.fixture(scope="module", params=minors_with_groups() or ("",))
def world(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A fleet, a service, and schedulers with and without the extender, of each version that places PodGroups."""
    with stage(programs_of(request.param)) as made:
        yield made


def test_same_gangs_bind_with_the_extender_as_without(world: Stage) -> None:
    """F150: with whole GPUs and shipped policies nothing is added; a sample of those of tests/e2e/gangs.py."""
    seen = list(compare(world, [draw(seed) for seed in COMPARED], again=True))

    assert [one for one in seen if not agree(*one)] == []
    assert any(ours.nodes for _, _, ours in seen)


def test_no_member_is_on_a_node_that_filter_refuses(world: Stage) -> None:
    """F150, F65: gangs that name products or declare memory."""
    bound = 0
    for seed in ANNOTATED:
        gang = draw(seed, annotated=True)
        seen = world.place(gang, OURS)
        bound += len(seen.nodes)
        asked = demand(member(gang, 0, OURS))
        nodes = state_of(fleet()).nodes
        refused = [name for name in seen.nodes if judge_class(asked, class_for_demand(asked, nodes[name]))]
        assert refused == []
        assert world.service.metric("gpu_usher_vram_overrun_nodes") == 0
    assert bound


def test_nothing_is_left_a_second_after_a_gang_failed_and_bytes_are_equal(world: Stage) -> None:
    """F150: nine members of 12 GiB each on four nodes of two T4: none binds, and the memory is free for others."""
    gang = Gang("too-large", 9, 9, 1, (), annotations={"gpu-memory": "12Gi", "products": "T4"})
    seen = world.place(gang, OURS)
    waiting = world.plane.api.get(f"/api/v1/namespaces/{SPACE}/pods/member-0")
    names = [f"t4-{index}" for index in range(8, 12)]

    world.plane.stop(OURS)
    bodies = {filter_bytes(world, waiting, names) for _ in range(50)}
    time.sleep(1.1)
    group = {"podGroupName": "probe"}
    probe = gpu_pod("probe", SPACE, {GPU: 2}, annotations={"gpu-memory": "15Gi"}, schedulingGroup=group)
    probe["metadata"]["uid"] = "probe"
    free = [call_extender(world.service, "filter", probe, [name])["NodeNames"] for name in names]
    world.start_ours()

    assert seen.nodes == ()
    assert len(bodies) == 1
    assert free == [[name] for name in names]


def filter_bytes(world: Stage, pod: Object, names: list[str]) -> bytes:
    """Return the answer of filter as it comes."""
    trusting = ssl.create_default_context(cafile=str(world.service.ca))
    with httpx.Client(verify=trusting, trust_env=False) as client:
        body = json.dumps({"Pod": pod, "NodeNames": names})
        return client.post(f"{world.service.url}/scheduler/filter", content=body).content
