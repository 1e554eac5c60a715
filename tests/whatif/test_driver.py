# SPDX-License-Identifier: Apache-2.0
"""Driver rollouts, compared with nodes that really have the other driver's labels; and their order, by examples."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.plan_nodes import gpu_pods, parse_selector
from app.cli.verbs import app
from app.placement.engine import class_for_demand, judge_class
from app.values.errors import BadInput
from app.values.label_requirements import all_allow
from app.values.versions import parse_version
from app.whatif.driver import plan_rollout
from app.world.state import State
from tests.builders import gpus, knowledge, node_document, pod, shipped, state_of

RUN = CliRunner()
IMAGES = (
    "nvcr.io/nvidia/pytorch:24.05-py3",
    "nvcr.io/nvidia/cuda:12.8.0-base-ubuntu22.04",
    "nvidia/cuda:11.8.0-base",
    "x",
)
DRIVERS = ("470.57.02", "525.60.13", "535.104.05", "550.54.15", "570.124.06", "580.65.06")
PRODUCTS = ("NVIDIA-H100-80GB-HBM3", "Tesla-T4", "NVIDIA-A10")


def image_pod(name: str, image: str, node: str = "", amount: int = 1, wishes: Any = None) -> dict[str, Any]:
    made = pod(gpus(amount, image=image), annotations=wishes, **({"nodeName": node} if node else {}))
    made["metadata"] |= {"name": name, "uid": name}
    return made


def fleet(chance: random.Random, driver: str | None) -> list[dict[str, Any]]:
    """Write ten nodes, the same for one seed; the first five have this driver, if one is given."""
    drawn = [(chance.choice(PRODUCTS), chance.choice(DRIVERS)) for _ in range(10)]
    return [
        node_document(f"n-{number}", product, driver if driver and number < 5 else own)
        for number, (product, own) in enumerate(drawn)
    ]


@pytest.mark.parametrize("seed", range(12))
def test_gains_and_losses_are_those_of_nodes_that_carry_the_other_drivers_labels(seed: int) -> None:
    """F122: the slow way reads the whole fleet again and judges every pod on every node."""
    to = DRIVERS[seed % len(DRIVERS)]
    wishes: list[dict[str, str]] = [{}, {"cuda": "12.4"}, {"products": "H100"}]
    chance = random.Random(seed)
    pods = [
        image_pod(f"p-{number}", chance.choice(IMAGES), chance.choice(["", "n-1", "n-7"]), wishes=chance.choice(wishes))
        for number in range(20)
    ]
    old = state_of([*fleet(random.Random(seed), None), *pods])
    new = state_of([*fleet(random.Random(seed), to), *pods])
    chosen = [f"n-{number}" for number in range(5)]
    wanting = list(gpu_pods(pods, old, shipped()))

    def eligible(state: State, pod_: Any) -> set[str]:
        return {
            name
            for name, node in state.nodes.items()
            if judge_class(pod_.demand, class_for_demand(pod_.demand, node)) is None
        }

    expected = {}
    for gpu_pod in wanting:
        was, now = eligible(old, gpu_pod), eligible(new, gpu_pod)
        if was != now:
            expected[gpu_pod.name] = (len(now - was), len(was - now), len(now), gpu_pod.node in was - now)

    rollout = plan_rollout(old.nodes, chosen, wanting, parse_version(to), knowledge().cuda)

    changes = {
        name: (effect.gains, effect.loses, effect.eligible_after, name in effect.bound_there)
        for effect in rollout.effects
        for name in effect.pods
    }
    assert changes == expected


def run(folder: Path, objects: list[dict[str, Any]], *words: str) -> Result:
    (folder / "now.json").write_text(json.dumps({"kind": "List", "items": objects}), "utf-8")
    return RUN.invoke(app, ["plan", "driver", "--snapshot", str(folder / "now.json"), *words])


def test_nodes_with_the_fewest_pods_come_first_and_pods_without_a_place_are_named(tmp_path: Path) -> None:
    """F122, P42: b comes first, as its pod finds room on the node outside the rollout; the large pods of a do not."""
    nodes = [
        node_document("a", driver="550.54.15", offers={"nvidia.com/gpu": 8}, labels={"pool": "old"}),
        node_document("b", driver="550.54.15", offers={"nvidia.com/gpu": 8}, labels={"pool": "old"}),
        node_document("c", driver="580.65.06", offers={"nvidia.com/gpu": 1}),
    ]
    pods = [image_pod("one", "x", "b", 1), image_pod("large", "x", "a", 4), image_pod("larger", "x", "a", 4)]

    result = run(tmp_path, [*nodes, *pods], "--nodes", "pool=old", "--to", "580.65.06", "-o", "json")

    answer = json.loads(result.stdout)
    assert [(turn["node"], turn["evicts"], turn["waiting"]) for turn in answer["order"]] == [
        ("b", ["team-a/one"], []),
        ("a", ["team-a/large", "team-a/larger"], []),
    ]
    assert answer["nodes"] == 2


def test_a_place_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """F122: the small pod returns to b, where then fewer than eight GPUs are free."""
    nodes = [node_document(name, driver="550.54.15") for name in ("a", "b")]
    pods = [image_pod("one", "x", "b", 1), image_pod("large", "x", "a", 8)]

    result = run(tmp_path, [*nodes, *pods], "--to", "580.65.06", "-o", "json")

    waiting = [turn["waiting"] for turn in json.loads(result.stdout)["order"]]
    assert waiting == [["team-a/one"], ["team-a/large"]]


def test_rollback_that_strands_pods_fails_and_names_them(tmp_path: Path) -> None:
    """F122, F31: a pod needs CUDA 12.8 natively, and the fleet goes back to driver 535."""
    objects = [node_document("a", driver="570.124.06"), image_pod("p", "x", "a", wishes={"cuda": "13.0"})]
    stays = run(tmp_path, objects, "--to", "580.65.06")
    strands = run(tmp_path, [node_document("a", driver="580.65.06"), objects[1]], "--to", "535.104.05")

    assert stays.exit_code == 0, stays.output
    assert strands.exit_code == 1, strands.output
    assert "run there now and would not be placed there again: team-a/p" in strands.output
    assert "1 more node could serve, 1 after the change" in stays.output


@pytest.mark.parametrize(
    ("text", "labels", "chosen"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b, c", {"a": "b", "c": ""}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("!a", {"a": "b"}, False),
        ("a in (b, c),d notin (e)", {"a": "c"}, True),
        ("a in (b,c)", {"a": "d"}, False),
        ("nvidia.com/gpu.product=Tesla-T4", {"nvidia.com/gpu.product": "Tesla-T4"}, True),
    ],
)
def test_selectors_choose_as_kubectl_does(text: str, labels: dict[str, str], chosen: bool) -> None:
    assert all_allow(parse_selector(text), labels) is chosen


@pytest.mark.parametrize("text", ["a in b", "=x", "a,,b", "(a)", "a in (b"])
def test_selector_that_kubectl_refuses_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match="selector"):
        parse_selector(text)


def test_selector_that_chooses_nothing_is_bad_input(tmp_path: Path) -> None:
    result = run(tmp_path, [node_document("a")], "--nodes", "pool=none", "--to", "580.65.06")

    assert isinstance(result.exception, BadInput)
