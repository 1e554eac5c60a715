# SPDX-License-Identifier: Apache-2.0
"""What the doctor says where labels and a node contradict each other: absent GPUs, other counts, a layout to come.

The words say what is seen. Where several causes fit they list them, with the check that tells them apart. Each function
gives pairs of what is seen and the remedy.
"""

from collections.abc import Iterator

from app.knowledge.gpu_evidence import GPUEvidence
from app.nodes.conditions import MIG_CONFIG, MIG_STATE, NVIDIA_DOMAIN, PRODUCT, REPLICAS
from app.nodes.model import CountDoubt, Node, Sharing
from app.nodes.sharing import labelled_slices


def absent_gpus(node: Node, evidence: GPUEvidence) -> Iterator[tuple[str, str, bool]]:
    """Say what is missing of the GPUs that labels promise and the node does not offer, and whether it comes up yet."""
    for promise in node.node_class.absent if node.devices is None else ():
        product = f" ({node.node_class.product.upper()})" if node.node_class.product else ""
        what = f"{promise.words}{product}, the node offers no {promise.resource}"
        layer = evidence.layer(promise, node.labels, any(map(promise.concerns, node.allocatable)))
        why = next((f"taint {key}" for key, _, _ in node.taints if key in evidence.coming_up), "")
        if node.not_ready is not None:
            why = "it was not Ready yet" if node.not_ready.never else ""
        yield f"{what}: {layer.says}{f'; the node is still coming up ({why})' * bool(why)}", layer.remedy, bool(why)


def differing_counts(node: Node, doubt: CountDoubt) -> tuple[str, str]:
    """Say how the capacity differs from what the labels count, with the causes that fit."""
    causes, check = _explained(node, doubt)
    return f"{_capacity(node)}, but {_labelled(node)}: {causes}", check


def _explained(node: Node, doubt: CountDoubt) -> tuple[str, str]:
    """Give the causes that fit, and the check or the remedy."""
    facts = node.node_class
    if doubt is CountDoubt.UnlabelledShares:
        why = (
            "by their name" if any(name.endswith(".shared") for name, _ in facts.offered) else "the machine has no more"
        )
        return (
            f"the units are shares of GPUs ({why}), which no label shows",
            "give GPU Feature Discovery the device plugin's config, so that it labels the sharing",
        )
    if doubt is CountDoubt.MoreThanLabelled:
        return (
            "the machine has more GPUs than labelled, so that GPU Feature Discovery ran before it saw them all",
            "restart GPU Feature Discovery there; if the labels stay the same, run nvidia-smi -L on the node",
        )
    if doubt is CountDoubt.SeveralCauses:
        shares = "; or the device plugin shares GPUs by a config that GPU Feature Discovery does not have"
        return (
            "either GPUs of several models, of which GPU Feature Discovery labels one; or GPUs were added after it ran"
            + shares * (facts.sharing is not Sharing.Exclusive),
            "run nvidia-smi -L on the node: if it shows as many GPUs as labelled, they are shared, so give GPU Feature "
            "Discovery the device plugin's config; if more of one model, restart it; if several models, use nodes of "
            "one model each, or the DRA driver, where a claim selects by productName",
        )
    if doubt is CountDoubt.Slices:
        renamed = sorted(
            name
            for name in node.allocatable
            if name.startswith(NVIDIA_DOMAIN) and name not in dict(node.node_class.offered)
        )
        return (
            "either the layout was changed after GPU Feature Discovery ran; or the device plugin shares or selects "
            "slices by a config that GPU Feature Discovery does not have"
            + f"; or it offers them by another name ({', '.join(renamed)})"
            * bool(renamed),
            "run nvidia-smi mig -lgi on the node: if it shows the slices as labelled, give both components one config; "
            "if others, restart GPU Feature Discovery",
        )
    return (
        "either GPUs are gone from the driver's view; or the device plugin offers only some, or shares them less, by a "
        "config that GPU Feature Discovery does not have",
        "run nvidia-smi -L on the node: if it shows as many GPUs as labelled, give both components one config; if "
        "fewer, check the node's XID errors and restart GPU Feature Discovery",
    )


def _capacity(node: Node) -> str:
    facts = node.node_class
    names = dict.fromkeys(name for name, _ in (*facts.offered, *facts.unhealthy_units))
    return ", ".join(f"{units} {name}" for name in names if (units := facts.capacity(name)))


def _labelled(node: Node) -> str:
    facts = node.node_class
    if facts.mig_strategy == "mixed":
        slices = (f"{node.labels[f'{name}.count']} {name}" for name in sorted(labelled_slices(node.labels)))
        return f"the labels count {', '.join(slices)}"
    replicas = node.labels.get(REPLICAS, "1")
    return f"the labels count {facts.labelled_gpus} {node.labels.get(PRODUCT, 'GPUs')} x gpu.replicas {replicas}"


def layout_to_come(node: Node) -> tuple[str, str]:
    """Say which MIG layout is not made yet."""
    state = node.labels.get(MIG_STATE)
    seen = f"the state {state} is of another layout" if state else f"no {MIG_STATE} says that it is applied"
    return (
        f"{MIG_CONFIG}={node.labels.get(MIG_CONFIG, '')} is not applied yet: {seen}",
        "check that MIG Manager has a pod on the node, and read its log: it cannot change GPUs that pods hold; if it "
        f"is not meant to run there, remove the label {MIG_CONFIG}",
    )


def strategy_remedy(node: Node) -> str:
    """Say how GPUs with MIG enabled become slices that pods can ask for, or whole again."""
    labelled = node.node_class.mig_strategy in ("single", "mixed")
    strategy = (
        f"restart the device plugin with the MIG strategy that is labelled ({node.node_class.mig_strategy})"
        if labelled
        else "set the device plugin's MIG strategy to single or mixed"
    )
    if node.labels.get(MIG_CONFIG) == "all-disabled":
        return f"{strategy}, or read MIG Manager's log: {MIG_CONFIG}=all-disabled is set, and MIG is still enabled"
    return f"{strategy}, or disable MIG ({MIG_CONFIG}=all-disabled)"
