# SPDX-License-Identifier: Apache-2.0
"""MIG layouts as they would be: facts as of a node that really has them, and advice against a brute-force twin."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from app.cli.verbs import app
from app.demo.sample_fleets import demo_fleet
from app.knowledge.mig_geometry import GPULayout, Instance
from app.nodes.model import FreeResources
from app.values.errors import BadInput
from app.whatif.advice import advise_layout, fill_gpu
from app.whatif.mig_relayout import (
    CARVED,
    PUBLISHED,
    fragmented_share,
    most_of,
    node_class_with_layout,
    parse_layout,
    relayout,
)
from app.whatif.placing_in_turn import GPUPod
from tests.builders import demand, gpus, knowledge, node, node_document, pod, state_of
from tests.cluster.dynamic import carved, counter_set, resource_slice

RUN = CliRunner()
A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"
GPU = "nvidia.com/gpu"
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb")


def slice_(profile: str) -> str:
    return f"nvidia.com/mig-{profile}"


def waiting(name: str, *profiles: str) -> GPUPod:
    """Write a pod that waits for these slices, with a container for each."""
    made = pod(*({**gpus(1, slice_(profile)), "name": f"c{number}"} for number, profile in enumerate(profiles)))
    return GPUPod(name, name, "", demand(made))


def free_nodes(count: int, per_node: int, label: str = A100) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.count": str(per_node)}
    made = [node(f"n-{number}", product=label, offers={GPU: per_node}, labels=labels) for number in range(count)]
    return {node.name: node for node in made}


def brute(pods: list[tuple[str, ...]], gpus_: int) -> int | None:
    """Return the least number of GPUs that take pods of one slice each, by trying every assignment; None if too few."""
    geometry = knowledge().geometry[A100.removeprefix("NVIDIA-").lower()]
    least = None
    for assigned in product(range(gpus_), repeat=len(pods)):
        sets = [
            [pods[index][0] for index, assigned_gpu in enumerate(assigned) if assigned_gpu == gpu]
            for gpu in range(gpus_)
        ]
        if all(geometry.find_starts(profiles) is not None for profiles in sets):
            used = sum(map(bool, sets))
            least = used if least is None else min(least, used)
    return least


@pytest.mark.parametrize("seed", range(25))
def test_advice_for_single_slices_takes_as_few_gpus_as_every_assignment_tried(seed: int) -> None:
    """F64: it places all pods where an assignment can, on the fewest GPUs; each GPU's slices fit together."""
    chance = random.Random(seed)
    nodes = free_nodes(chance.choice([1, 3]), 1) if seed % 2 else free_nodes(1, 3)
    pods = [waiting(f"p-{number}", chance.choice(PROFILES)) for number in range(chance.randrange(1, 7))]
    requests = [tuple(name.removeprefix("nvidia.com/mig-") for name, _ in gpu_pod.demand.resources) for gpu_pod in pods]
    total = sum(3 if len(nodes) == 1 and not seed % 2 else 1 for _ in nodes)
    least = brute(requests, total)

    advice = advise_layout(nodes, list(nodes), pods, knowledge())

    geometry = knowledge().geometry[A100.removeprefix("NVIDIA-").lower()]
    carved_ = [profiles for layout in advice.layouts for profiles in layout.gpus if profiles]
    assert all(geometry.find_starts(profiles) is not None for profiles in carved_)
    assert (not advice.unplaced) is (least is not None)
    if least is not None:
        assert len(carved_) == least
        assert Counter(profile[0] for profile in requests) <= Counter(profile for gpu in carved_ for profile in gpu)


@pytest.mark.parametrize(
    ("profiles", "mix", "expected"),
    [
        (("3g.40gb",), {"3g.40gb": 1}, ("3g.40gb", "3g.40gb")),
        (("1g.10gb",), {"1g.10gb": 5, "7g.80gb": 9}, ("1g.10gb",) * 7),
        (("1g.10gb",), {"1g.10gb": 1, "2g.20gb": 2}, ("1g.10gb", "2g.20gb", "2g.20gb", "2g.20gb")),
        ((), {"1g.10gb": 2, "2g.20gb": 1}, (*["1g.10gb"] * 3, *["2g.20gb"] * 2)),
        (("7g.80gb",), {"1g.10gb": 1}, ("7g.80gb",)),
        (("1g.10gb",), {"1g.5gb": 3}, ("1g.10gb",)),
    ],
    ids=[
        "one more",
        "what is larger fits no more",
        "by highest averages",
        "a new GPU",
        "full",
        "none that the product has",
    ],
)
def test_what_is_left_of_a_gpu_is_cut_in_the_mix_of_what_is_asked(
    profiles: tuple[str, ...], mix: dict[str, int], expected: tuple[str, ...]
) -> None:
    """F64."""
    assert fill_gpu(knowledge().geometry["a100-sxm4-80gb"], profiles, mix) == expected


def test_running_pods_are_part_of_the_mix_and_are_not_placed_again() -> None:
    """F64: pods like them will come again."""
    running = [replace(waiting(f"r-{number}", "2g.20gb"), node="elsewhere") for number in range(9)]

    advice = advise_layout(free_nodes(1, 2), ["n-0"], [*running, waiting("p", "1g.10gb")], knowledge())

    assert [node_layout.pods for node_layout in advice.layouts] == [("p",)]
    assert advice.layouts[0].gpus == (("1g.10gb", "2g.20gb", "2g.20gb", "2g.20gb"), ())


def test_gpus_that_are_not_cut_keep_their_layout() -> None:
    """F64: the configuration does not name them, so that mig-parted leaves them as they are."""
    carved_node = node("n", product=A100, offers={slice_("1g.10gb"): 14}, labels={"nvidia.com/gpu.count": "2"})

    advice = advise_layout({"n": carved_node}, ["n"], [waiting("p", "7g.80gb")], knowledge())

    assert advice.configuration["mig-configs"] == {
        "usher-1": [{"devices": [0], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}]
    }


@pytest.mark.parametrize(
    ("offers", "mix", "expected"),
    [
        ({slice_("1g.10gb"): 4, slice_("3g.40gb"): 1}, {slice_("1g.10gb"): 1}, 0.5),
        ({slice_("1g.10gb"): 4, slice_("3g.40gb"): 1}, {slice_("1g.10gb"): 1, slice_("3g.40gb"): 3}, 0.5),
        ({slice_("1g.10gb"): 4}, {slice_("1g.10gb"): 3, GPU: 1}, 0.25),
        ({slice_("1g.10gb"): 4}, {slice_("1g.10gb"): 2}, 0.0),
        ({GPU: 1}, {slice_("1g.10gb"): 2}, 1.0),
        ({slice_("1g.10gb"): 0}, {slice_("1g.10gb"): 2}, 0.0),
        ({slice_("1g.10gb"): 7}, {}, 1 - 1 / 6),
    ],
    ids=["half is of another size", "either half", "a quarter asks a whole GPU", "none", "all", "full", "mix unknown"],
)
def test_fragmentation_is_what_the_next_pod_cannot_use(
    offers: dict[str, int], mix: dict[str, int], expected: float
) -> None:
    """F61, F64: slices that a device plugin offers count by memory slices."""
    assert fragmented_share([node(product=A100, offers=offers)], mix, knowledge()) == pytest.approx(expected)


def test_fragmentation_of_gpus_that_are_carved_on_demand_is_by_place() -> None:
    """F61, P14: a 1g in the first of eight slices blocks 4g; of the seven free, 3g can use four, and 4g none."""
    geometry = knowledge().geometry["a100-sxm4-80gb"]
    bare = node(product=A100, offers={})
    carved_ = replace(bare, free=FreeResources({}, layouts=(GPULayout("0", geometry, (Instance("1g.10gb", 0),)),)))

    share = fragmented_share([carved_], {slice_("3g.40gb"): 1, slice_("4g.40gb"): 1}, knowledge())

    assert share == pytest.approx(1 - (4 / 7 + 0) / 2)


def test_another_layout_shows_its_fragmentation(tmp_path: Path) -> None:
    """F64: whole GPUs serve no pod of slices; in the new layout such pods can use all that is free."""
    queued = pod(gpus(1, slice_("3g.40gb")))
    words = ("plan", "relayout", "--layout", "3g.40gb:2")

    result = run(tmp_path, [node_document("a", A100), queued], *words)
    answer = json.loads(run(tmp_path, [node_document("a", A100), queued], *words, "-o", "json").stdout)

    assert "fragmentation: 100.0% → 0.0%" in result.stdout
    assert (answer["fragmentation_before"], answer["fragmentation_after"]) == (1.0, 0.0)


def test_slices_of_one_pod_are_on_one_node() -> None:
    """F64: two nodes of one GPU each hold no pod of two 7g, but two pods of one 7g."""
    together = advise_layout(free_nodes(2, 1), ["n-0", "n-1"], [waiting("p", "7g.80gb", "7g.80gb")], knowledge())
    apart = advise_layout(free_nodes(2, 1), ["n-0", "n-1"], [waiting(name, "7g.80gb") for name in "pq"], knowledge())

    assert together.unplaced == ("p",)
    assert [node_layout.node for node_layout in apart.layouts] == ["n-0", "n-1"]


def test_slices_that_are_there_are_used_and_no_gpu_is_carved_for_them() -> None:
    nodes = {"m": node("m", product=A100, offers={slice_("1g.10gb"): 1}), **free_nodes(1, 8)}

    advice = advise_layout(nodes, list(nodes), [waiting("p", "1g.10gb"), waiting("q", "1g.10gb")], knowledge())

    assert (advice.fitting, [node_layout.pods for node_layout in advice.layouts]) == (("p",), [("q",)])


def test_product_that_a_pod_does_not_want_is_not_carved_for_it() -> None:
    """F64."""
    made = pod(gpus(1, slice_("1g.10gb")), annotations={"products": "H100"})
    nodes = free_nodes(1, 8)

    advice = advise_layout(nodes, list(nodes), [GPUPod("p", "p", "", demand(made))], knowledge())

    assert advice.unplaced == ("p",)


def run(folder: Path, objects: list[dict[str, Any]], *words: str) -> Result:
    (folder / "now.json").write_text(json.dumps({"kind": "List", "items": objects}), "utf-8")
    return RUN.invoke(app, [*words, "--snapshot", str(folder / "now.json")])


def test_advice_is_a_configuration_of_mig_parted(tmp_path: Path) -> None:
    """F64: comments name the nodes, and a node that holds a pod is left as it is."""
    busy = pod(gpus(1), nodeName="busy")
    queued = [pod(gpus(1, slice_(profile))) for profile in ("3g.40gb", "3g.40gb", "1g.10gb.me")]
    for number, document in enumerate(queued):
        document["metadata"] |= {"name": f"p-{number}", "uid": f"q-{number}"}
    nodes = [node_document(name, A100) for name in ("busy", "idle")]

    result = run(tmp_path, [*nodes, busy, *queued], "plan", "mig")

    config = yaml.safe_load(result.stdout)
    assert result.exit_code == 0, result.output
    assert "# kubectl label node idle --overwrite nvidia.com/mig.config=usher-1" in result.stdout
    assert "node busy" not in result.stdout
    assert config["version"] == "v1"
    devices = config["mig-configs"]["usher-1"]
    assert sorted(index for device in devices for index in device["devices"]) == [0, 1]
    assert {"3g.40gb": 2} in [device["mig-devices"] for device in devices]
    assert {"3g.40gb": 1, "1g.10gb+me": 1} in [device["mig-devices"] for device in devices]
    assert all(device["mig-enabled"] for device in devices)


@pytest.mark.parametrize(
    ("strategy", "really"),
    [
        ("mixed", {"offers": {GPU: 0, slice_("1g.10gb"): 56}, "labels": {"nvidia.com/mig.strategy": "mixed",
                   "nvidia.com/mig.config.state": "success"}}),
        ("single", {"product": f"{A100}-MIG-1g.10gb", "offers": {GPU: 56},
                    "labels": {"nvidia.com/mig.strategy": "single", "nvidia.com/mig.config.state": "success",
                               "nvidia.com/gpu.count": "56"}}),
    ],
)  # fmt: skip
def test_facts_are_those_of_a_node_that_has_the_layout(strategy: str, really: dict[str, Any]) -> None:
    """F64: GPU Feature Discovery labels it so."""
    before = node(product=A100, labels={"nvidia.com/mig.strategy": strategy})
    expected = node(**{"product": A100, **really}).node_class

    node_class = node_class_with_layout(before.node_class, [("1g.10gb",) * 7] * 8, knowledge())

    names = ("product", "sharing", "mig_strategy", "mig_profile", "offered", "labelled_gpus", "stale", "mig_state")
    assert [getattr(node_class, name) for name in names] == [getattr(expected, name) for name in names]


def test_layout_on_nodes_evicts_and_places_pods(tmp_path: Path) -> None:
    """F64, F122: the pod of the changed node moves to the other node, and the pod that waits for a slice is placed."""
    nodes = [node_document(name, A100, labels={"pool": name}) for name in ("a", "b")]
    moved, queued = pod(gpus(2), nodeName="a"), pod(gpus(1, slice_("3g.40gb")))
    moved["metadata"] |= {"name": "moved", "uid": "1"}
    queued["metadata"] |= {"name": "queued", "uid": "2"}
    words = ("plan", "relayout", "--nodes", "pool=a", "--layout", "3g.40gb:2", "-o", "json")

    answer = json.loads(run(tmp_path, [*nodes, moved, queued], *words).stdout)

    assert answer["nodes"][0]["after"] == {GPU: 0, slice_("3g.40gb"): 16}
    assert answer["nodes"][0]["evicts"] == ["team-a/moved"]
    assert (answer["gained"], answer["lost"], answer["waiting"]) == (["team-a/queued"], [], [])


def test_product_without_mig_is_a_problem_and_fails(tmp_path: Path) -> None:
    result = run(tmp_path, [node_document("t", "Tesla-T4")], "plan", "relayout", "--layout", "all-1g.10gb")

    assert result.exit_code == 1
    assert "t: its product has no MIG" in result.output


@pytest.mark.parametrize(
    ("profile", "most"), [("1g.10gb", 7), ("1g.10gb.me", 1), ("2g.20gb", 3), ("3g.40gb", 2), ("7g.80gb", 1)]
)
def test_all_of_a_profile_is_as_many_as_fit(profile: str, most: int) -> None:
    """P13."""
    assert most_of(knowledge().geometry["a100-sxm4-80gb"], profile) == most


@pytest.mark.parametrize(
    ("product", "profiles"),
    [
        ("a100-sxm4-40gb", ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]),
        ("a100-sxm4-80gb", ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]),
        ("h100-nvl", ["1g.12gb", "1g.12gb", "2g.24gb", "3g.47gb"]),
        ("h200", ["1g.18gb", "1g.18gb", "2g.35gb", "3g.71gb"]),
        ("a30", ["1g.6gb", "1g.6gb", "2g.12gb"]),
    ],
)
def test_balanced_layout_is_what_mig_parted_calls_so(product: str, profiles: list[str]) -> None:
    """S4, F64: the source is config-default.yaml of mig-parted."""
    assert list(parse_layout("all-balanced")(knowledge().geometry[product])) == profiles


@pytest.mark.parametrize("text", ["", "all-2h", "1g.10gb", "1g.10gb:x", "1g.10gb:0", "all->=1g.10gb"])
def test_layout_that_is_none_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput):
        parse_layout(text)


@pytest.mark.parametrize("text", ["all-1g.5gb", "3g.40gb:3", "3g.40gb:2,1g.10gb:1"])
def test_layout_that_does_not_fit_a_product_is_bad_input(text: str) -> None:
    """P13: two 3g leave no memory for a 1g."""
    with pytest.raises(BadInput):
        parse_layout(text)(knowledge().geometry["a100-sxm4-80gb"])


def problems(objects: list[dict[str, Any]], *chosen: str) -> dict[str, str]:
    state = state_of(objects)
    result = relayout(state.nodes, chosen, [], parse_layout("all-1g.10gb"), knowledge())
    return {node.node: node.problem for node in result.nodes}


@pytest.mark.parametrize("fleet", ["dra", "gpucluster"])
def test_layout_of_slices_without_counters_is_what_they_publish(fleet: str) -> None:
    """F64: also where no DeviceClass serves a resource, as for the slices of mig-0 in gpucluster."""
    h100, mig = {"dra": ("dra-h100-0", "dra-mig-0"), "gpucluster": ("h100-0", "mig-0")}[fleet]

    assert problems(list(demo_fleet(fleet)), h100, mig) == {h100: PUBLISHED, mig: PUBLISHED}


def test_gpus_with_shared_counters_are_carved_on_demand() -> None:
    """F64, F135: the whole GPU and each placement consume the counters of the GPU (KEP-4815)."""
    node = node_document("n", offers={}, labels={})
    made = resource_slice(carved())
    made["spec"]["sharedCounters"] = [counter_set()]

    assert problems([node, made], "n") == {"n": CARVED}


def test_node_of_a_device_plugin_has_the_layout() -> None:
    """F64: what is said of DRA does not keep the nodes of a device plugin from their layout."""
    assert problems([node_document("n", "NVIDIA-H100-80GB-HBM3")], "n") == {"n": ""}
