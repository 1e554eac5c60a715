# SPDX-License-Identifier: Apache-2.0
"""A node's class is read from the labels that matter, whatever their order and however many others there are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from app.nodes.labels import _read_class, _relevant_keys, read_node_class
from tests.builders import knowledge

GPU = "nvidia.com/gpu"
EXACT = _relevant_keys(knowledge()).exact
SLICES, PCI, *OTHERS = _relevant_keys(knowledge()).prefixes
LABELS = st.dictionaries(
    st.sampled_from(
        [
            *sorted(EXACT),
            *(f"{SLICES}1g.10gb.{fact}" for fact in ("count", "memory", "replicas")),
            f"{PCI}0302_10de.present",
            f"{PCI}0200_15b3.present",
            *(f"{prefix}1" for prefix in OTHERS),
            "pool",
        ]
    ),
    st.sampled_from(["1", "8", "81559", "time-slicing", "Tesla-T4", "NVIDIA-A100-SXM4-40GB", "success", "570.124.06"]),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(LABELS, st.permutations(range(12)))
def test_class_is_that_of_all_labels_in_any_order(labels: dict[str, str], order: list[int]) -> None:
    """F17: most labels of a node are not looked at, and nodes that differ in their order share a class."""
    offered = ((GPU, 8), ("nvidia.com/mig-1g.10gb", 7))
    pairs = list(labels.items())
    shuffled = dict(pairs[place] for place in order if place < len(pairs))

    twin = _read_class.__wrapped__(tuple(pairs), offered, knowledge(), offered, -1, False)

    assert twin == read_node_class(labels, offered, knowledge(), offered) is read_node_class(
        shuffled, offered, knowledge(), offered)  # fmt: skip
