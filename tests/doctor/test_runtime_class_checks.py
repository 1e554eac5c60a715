# SPDX-License-Identifier: Apache-2.0
"""What doctor says of RuntimeClasses and the runtime handlers of nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.doctor.operand_checks import examine_runtime_classes
from app.kube.objects import RuntimeClass, Scheduling
from app.nodes.model import Node
from tests.builders import knowledge, node

NVIDIA = {"nvidia": RuntimeClass("nvidia")}
GKE = {"cloud.google.com/gke-accelerator": "nvidia-l4"}


def with_handlers(name: str, handlers: Sequence[str] | None, **more: Any) -> Node:
    """Make a GPU node with these runtime handlers; None for one that lists none."""
    made = node(name, **more)
    known = None if handlers is None else frozenset(handlers)
    return replace(made, node_class=replace(made.node_class, runtime_handlers=known))


HAVING, LACKING, UNKNOWN = (
    with_handlers("having", ["", "nvidia"]),
    with_handlers("lacking", ["", "runc"]),
    with_handlers("unknown", None),
)
AMD = with_handlers("amd", ["", "runc"], product=None, driver=None, offers={"amd.com/gpu": 8})


@pytest.mark.parametrize(
    ("nodes", "classes", "wanted", "expected"),
    [
        pytest.param([HAVING, UNKNOWN], NVIDIA, "Auto", [], id="all is well"),
        pytest.param([HAVING], None, "Auto", [], id="classes not known"),
        pytest.param([AMD], NVIDIA, "Auto", [], id="no node of a vendor with a toolkit"),
        pytest.param([LACKING], NVIDIA, "Auto", ["RuntimeHandlerAbsent"], id="no node has the handler"),
        pytest.param([LACKING, HAVING], NVIDIA, "Auto", ["RuntimeHandlerAbsent"], id="some lack it"),
        pytest.param(
            [HAVING], {"gpu": RuntimeClass("gone")}, "gpu", ["RuntimeHandlerAbsent"], id="a class that a policy names"
        ),
        pytest.param([HAVING], {"kata": RuntimeClass("kata")}, "Auto", ["RuntimeClassAbsent"], id="none of NVIDIA"),
        pytest.param([UNKNOWN], {}, "Auto", ["RuntimeClassAbsent"], id="no class, handlers not known"),
        pytest.param([LACKING], {}, "Auto", [], id="no class, and no handler: CDI"),
        pytest.param([node("gke", labels=GKE)], {}, "Auto", [], id="no class, and none needed"),
        pytest.param([LACKING], {}, "nvidia", ["RuntimeClassAbsent"], id="a policy names what is not there"),
        pytest.param([HAVING], {}, "", [], id="no policy wants any"),
        pytest.param([HAVING], {"gpu": RuntimeClass("nvidia")}, "Auto", [], id="another name"),
        pytest.param(
            [HAVING],
            {"nvidia": RuntimeClass("nvidia", Scheduling({"a": "b"}))},
            "Auto",
            ["RuntimeClassSelector"],
            id="a selector",
        ),
    ],
)
def test_classes_and_handlers_that_do_not_suit_each_other_are_found(
    nodes: list[Node], classes: Mapping[str, RuntimeClass] | None, wanted: str, expected: list[str]
) -> None:
    """P34."""
    findings = examine_runtime_classes(nodes, classes, frozenset(filter(None, [wanted])), knowledge())

    assert [finding.check for finding in findings] == expected


def test_nodes_that_lack_the_handler_are_named_and_the_class_is() -> None:
    """P34: a misnamed class of a policy is told beside the one that has the toolkit's handler."""
    classes = {"gpu": RuntimeClass("nvidia")}

    absent, lacking = examine_runtime_classes([LACKING, HAVING], classes, frozenset({"nvidia"}), knowledge())

    assert absent.what == "no RuntimeClass nvidia: pods get none; RuntimeClass gpu has the toolkit's handler"
    assert (lacking.nodes, lacking.objects) == (("lacking",), ("RuntimeClass gpu",))
