# SPDX-License-Identifier: Apache-2.0
"""Snapshots: what `kubectl get -o json` writes is read completely, and any other file is an error that says why."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cluster.snapshot import LARGEST_YAML_BYTES, SNAPSHOT_KINDS, bound_volumes, fill, read_snapshot
from app.demo.sample_fleets import demo_fleet
from app.values.errors import BadInput, SnapshotError
from app.world.state import State
from tests.builders import gpus, knowledge, node_document, pod, state_of


def filled(data: bytes) -> State:
    """Read a file into a new state."""
    return state_of(read_snapshot("fleet.json", data))


def listed(*items: Any, kind: str = "List") -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": kind, "items": list(items)}).encode()


NODE = node_document("a")
FORMS = {
    "a List": listed(NODE),
    "a NodeList": listed(NODE, kind="NodeList"),
    "one object": json.dumps(NODE).encode(),
    "white space around": b"\n\t " + listed(NODE) + b"\n",
    "indented": json.dumps(json.loads(listed(NODE)), indent=4).encode(),
    "YAML": yaml.safe_dump(json.loads(listed(NODE))).encode(),
    "YAML documents": b"---\n" + yaml.safe_dump(NODE).encode() + b"---\n---\nkind: Secret\nmetadata: {name: s}\n",
    "with a byte order mark": b"\xef\xbb\xbf" + listed(NODE),
    "with kinds we do not read": listed({"kind": "Secret"}, NODE, {"kind": "Event", "metadata": 3}),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS.keys())
def test_file_is_read_in_every_form_that_kubectl_writes(data: bytes) -> None:
    """See docs/reference/listeners.md#snapshots."""
    assert list(filled(data).nodes) == ["a"]


def test_kinds_are_counted_so_that_absent_ones_can_be_named() -> None:
    counts = fill(State(knowledge()), read_snapshot("f", listed(NODE, node_document("b"), pod())))

    present = {kind: count for kind, count in counts.items() if count}
    assert present == {"Node": 2, "Pod": 1}
    assert set(counts) == set(SNAPSHOT_KINDS)


def test_order_of_objects_in_the_file_does_not_matter() -> None:
    fleet = demo_fleet()

    forward, backward = filled(listed(*fleet)), filled(listed(*reversed(fleet)))

    assert forward.nodes == backward.nodes
    assert forward.namespaces.by_name == backward.namespaces.by_name


def test_bound_unfinished_pods_hold_what_they_ask_and_others_hold_nothing() -> None:
    phases = {"Running": 1, "Pending": 2, "Succeeded": 4, "Failed": 1, "Unknown": 3}
    pods = [
        {**pod(gpus(amount), nodeName="a"), "metadata": {"name": phase, "uid": phase}, "status": {"phase": phase}}
        for phase, amount in phases.items()
    ]
    unbound = {**pod(gpus(8)), "metadata": {"name": "w", "uid": "w"}, "status": {"phase": "Pending"}}

    state = filled(listed(*pods, unbound, NODE))

    assert state.nodes["a"].free.units == {"nvidia.com/gpu": 2}
    assert {usage.name for usage in state.allocations.bound("a")} == {
        "default/Running",
        "default/Pending",
        "default/Unknown",
    }


def test_namespaces_have_their_labels_and_unknown_ones_the_one_that_all_have() -> None:
    """See docs/reference/listeners.md#snapshots."""
    state = filled(listed({"kind": "Namespace", "metadata": {"name": "team-a", "labels": {"team": "a"}}}))

    assert state.namespaces.labels("team-a") == {"team": "a"}
    assert state.namespaces.labels("other") == {"kubernetes.io/metadata.name": "other"}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        pytest.param([], None, id="not listed: unknown"),
        pytest.param([{"kind": "RuntimeClass", "metadata": {"name": "nvidia"}}], {"nvidia"}, id="listed"),
    ],
)
def test_runtime_classes_are_unknown_unless_the_file_lists_some(items: list[Any], expected: set[str] | None) -> None:
    classes = filled(listed(NODE, *items)).runtime_classes

    assert expected == (None if classes is None else set(classes))


WRONG = {
    "a JSON list": b"[]",
    "a number": b"17",
    "a word": b"hello",
    "truncated JSON": listed(NODE)[:-9],
    "not UTF-8": b'{"kind":"N\xff"}',
    "100,000 levels": b'{"kind":' * 100_000,
    "YAML of 3,000 levels": b"kind: " + b"[" * 3000,
    "an object without kind": b"{}",
    "a List without items": b'{"kind":"List"}',
    "items are an object": b'{"kind":"List","items":{}}',
    "an item is a string": b'{"kind":"List","items":["a"]}',
    "kind is a number": b'{"kind":5}',
    "kind is null": b'{"kind":null}',
    "5,000 digits": b"kind: Node\nmetadata: {name: " + b"9" * 5000 + b"}\n",
    "a tab in YAML": b"kind: Node\n\tmetadata: {}\n",
    "an unknown YAML tag": b"kind: !!python/object:os.system Node\n",
    "a list as a key": b"? [a]\n: b\n",
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_other_file_is_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(SnapshotError, match=r"^fleet\.json(:\d+:\d+)?: "):
        read_snapshot("fleet.json", data)


ODD = {
    "kind is a list": {"kind": []},
    "kind is an object": {"kind": {}},
    "a Node without name": {"kind": "Node"},
    "a Node's labels are a list": {"kind": "Node", "metadata": {"name": "n", "labels": []}},
    "a Pod's spec is a list": {"kind": "Pod", "spec": []},
    "a Pod asks for a word": pod(gpus("many"), nodeName="a"),
    "a Namespace's metadata is a string": {"kind": "Namespace", "metadata": "x"},
    "a ResourceClaim's spec is a list": {"kind": "ResourceClaim", "spec": []},
    "a ResourceClaimTemplate's devices are a string": {
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": {"devices": "x"}},
    },
    "a RuntimeClass's metadata is a string": {"kind": "RuntimeClass", "metadata": "x"},
}


@pytest.mark.parametrize("item", ODD.values(), ids=ODD.keys())
def test_object_of_wrong_shape_is_bad_input_or_passed_over_and_no_crash(item: dict[str, Any]) -> None:
    """By errors.py, any exception but BadInput would be a bug (exit code 3)."""
    state = State(knowledge())

    try:
        fill(state, [NODE, item])
    except BadInput as error:
        assert len(str(error)) > 10  # noqa: PT017  # either outcome is fine, a crash is not
    else:
        assert "a" in state.nodes


def test_yaml_too_large_to_read_in_time_is_said_and_json_of_that_size_is_read() -> None:
    """JSON may have any size, YAML up to 50 MB (docs/reference/listeners.md#snapshots)."""
    padding = b" " * LARGEST_YAML_BYTES

    with pytest.raises(SnapshotError, match="wants at most"):
        read_snapshot("f", yaml.safe_dump(NODE).encode() + padding)
    assert read_snapshot("f", listed(NODE) + padding) == [NODE]


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_objects_or_a_snapshot_error(data: bytes) -> None:
    try:
        objects = read_snapshot("f", data)
    except SnapshotError as error:
        assert str(error).startswith("f:")  # noqa: PT017  # either outcome is fine, a crash is not
    else:
        assert all(isinstance(document, dict) for document in objects)


def test_malformed_affinity_of_a_volume_is_told_with_its_place() -> None:
    """F86."""
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": 7, "operator": "In", "values": ["a"]}]}]}
    volume = {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {"nodeAffinity": {"required": required}}}

    with pytest.raises(BadInput, match=r"^PersistentVolume v: spec\.nodeAffinity\.required\."):
        bound_volumes([volume])
