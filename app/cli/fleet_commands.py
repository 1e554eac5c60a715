# SPDX-License-Identifier: Apache-2.0
"""The command lines of the verbs that ask about a fleet, its pods and changes of its nodes: options and help.

What a verb does is in the module that `VERBS` names (verbs.py); it takes the options under the same names.
"""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import (
    Fleet,
    GovernedFleet,
    Namespace,
    Nodes,
    Output,
    OwnNamespace,
    Policies,
    PrometheusOptions,
    Registry,
    Since,
    one_of,
    output_of,
)

ROWS = ("namespace", "owner", "product", "node", "pod")
"""`By` of app/usage/table.py."""
FREED = ("node", "domain", "places")
"""`Freed` of app/whatif/repack.py."""


def explain(
    *,
    kind: Annotated[str, typer.Argument(help="pod, deployment, job and so on; pod by default.")] = "",
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME; TYPE/NAME works as well.")] = "",
    file: Annotated[
        str | None,
        typer.Option("--filename", "-f", help="Explain the Pods and workloads of a file instead; - is stdin."),
    ] = None,
    namespace: Namespace = None,
    fleet: Fleet,
    url: Annotated[str | None, typer.Option(help="Ask a running service, at its web UI listener.")] = None,
    use: PrometheusOptions,
    policies: Policies = None,
    details: Annotated[
        bool, typer.Option("--details", help="Show what the answer rests on: evidence, scores.")
    ] = False,
    registry: Registry = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="Show the reasons against every single node.")] = False,
    output: Annotated[str, output_of("text", "wide", "json", "yaml")] = "text",
) -> None:
    """Explain why a pod is Pending, or where it would run; exit code 1 if no node fits now.

    Of a pod in the cluster: gpu-usher explain pod/train-0 -n team-a. Of a workload: explain deployment/train, which is
    the newest of its pods that are Pending, or its pod template. Of what is not there yet: explain -f train.yaml, with
    Pods, workloads, their ResourceClaims and templates, Lists and several documents. Of a pod that has ended, how it
    did, such as UnexpectedAdmissionError; and where it would run if created again.
    """


def doctor(
    *,
    fleet: Fleet,
    prometheus: Annotated[str | None, typer.Option(help="A Prometheus with DCGM's metrics.")] = None,
    dcgm_exporters: Annotated[
        list[str] | None, typer.Option(help="URLs of DCGM exporters instead of a Prometheus.")
    ] = None,
    scheduler_config: Annotated[
        Path | None, typer.Option(help="The scheduler's configuration; else ConfigMap gpu-usher-scheduler.")
    ] = None,
    namespace: OwnNamespace = "gpu-usher",
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for advice too.")] = False,
    output: Output = "text",
) -> None:
    """Examine every node, and of a live cluster what GPU pods depend on; exit 1 if something hurts pods now.

    Nothing is stored: a GPU pod is created by server-side dry run, if the kubeconfig's user may create pods. What the
    user may not read is reported as advice (NotLookedAt).
    """


def inventory(
    *,
    fleet: Fleet,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the cluster and redraw until Ctrl-C.")] = False,
    output: Output = "text",
) -> None:
    """Count the fleet's GPUs by product, driver and sharing: in all, free, held by which namespaces, unhealthy.

    One unit is what one nvidia.com/gpu (or .shared) is on these nodes: a whole GPU, a time-slice, an MPS share, a HAMi
    vGPU or a MIG slice; MIG slices are also counted by profile. Free units are held by no bound, unfinished pod, and
    their node is Ready.
    """


def usage(
    *,
    source: PrometheusOptions,
    by: Annotated[str, one_of(*ROWS, names=("--by",), prefix="What the rows are: ")] = "namespace",
    since: Since = "7d",
    fleet: Fleet,
    output: Output = "text",
) -> None:
    """Show how the GPUs that pods hold were used: hours held, active share, memory peak, idle now and for how long.

    Held is the time in which the DCGM exporter named the pod as the holder. Whole GPUs, MIG slices and shared GPUs are
    rows of their own. What is not known is shown as unknown and never as idle: a share is of the time in which it was
    known, and a GPU is idle only where nine tenths of the last minutes are known. What several pods use at once is not
    divided among them. With a fleet, its owners and its shared nodes are taken from there.
    """


def mutate(
    *,
    file: Annotated[str, typer.Option("--filename", "-f", help="YAML or JSON of Pods and workloads; - is stdin.")],
    fleet: GovernedFleet,
    namespace: Namespace = None,
    registry: Registry = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what changes instead of the whole object.")] = False,
    output: Output = "text",
) -> None:
    """Show what admission would do to a Pod, or to the template of a workload, if it were created now.

    Stdout has the objects as they would be admitted, as YAML for kubectl, or with --diff what changes; stderr has what
    was done and the messages to the user. Objects of other kinds pass through. Exit 1 if one is denied.
    """


def image(
    reference: Annotated[str, typer.Argument(help="Such as nvcr.io/nvidia/pytorch:25.06-py3.")],
    *,
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Show what an image carries about CUDA, read from its registry, and on which nodes a pod of it with one GPU fits.

    Credentials are those in the files of docker or podman.
    """


def plan_driver(
    *,
    to: Annotated[str, typer.Option("--to", help="The driver's version, such as 580.65.06.")],
    nodes: Nodes = "",
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Show what another driver on some nodes changes: the pods that gain or lose them, and the order of least eviction.

    Every GPU pod of the fleet, running or pending, is judged on these nodes with the old and the new driver: CUDA with
    minor-version and forward compatibility, NVIDIA_REQUIRE_*, policies. Nodes with the fewest pods come first. The
    others are assumed to be cordoned, so that no pod is evicted twice; pods without a place until then are named.
    Taints, CPU and memory are left to the scheduler. Exit 1 if pods are left that no node of the fleet can serve.
    """


def plan_relayout(
    *,
    layout: Annotated[
        str, typer.Option("--layout", help="all-1g.10gb, all-balanced, all-disabled, or 1g.10gb:2,3g.40gb:1.")
    ],
    nodes: Nodes = "",
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Show what another MIG layout on some nodes changes: what they offer, which pods it evicts, which have a place.

    Every GPU of the nodes gets the layout; MIG Manager stops all GPU pods of a node to change it. The evicted and the
    pending pods are then placed one after another, the evicted ones first. Nodes keep their MIG strategy: with single
    the slices are nvidia.com/gpu, else nvidia.com/mig-*. Fragmentation is the share of the free memory slices that the
    next pod is expected not to be able to use, by the mix that all pods request. Exit 1 if a node cannot have the
    layout.
    """


def plan_mig(
    *,
    nodes: Nodes = "",
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Find a MIG layout of idle nodes for the pods that wait for slices (nvidia.com/mig-*).

    Stdout has the configuration for mig-parted (the mig-parted-config of MIG Manager), with the nodes it is for and the
    pods that it gives a place to as comments. Only GPU nodes without GPU pods are changed, so that no pod is evicted;
    those with less memory come first, and no more GPUs than needed, so that others keep their layout. What those pods
    leave of a GPU becomes slices in the mix that all pods request, running ones included. Nodes must use MIG strategy
    mixed. Exit 1 if pods stay without a slice.
    """


def plan_repack(
    *,
    free: Annotated[str, one_of(*FREED, names=("--free",), prefix="What to free: ")] = "node",
    nodes: Nodes = "",
    most_moves: Annotated[int, typer.Option("--moves", min=1, max=64, help="The most pods to move.")] = 8,
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Find the fewest restarts of pods that free a node, an NVLink domain, or places for the pods that wait.

    Only pods move that a controller makes again, that no PodDisruptionBudget and no annotation of cluster-autoscaler,
    Karpenter or the descheduler protects, and for a pod that waits only those of no higher priority. Each move is
    proven by the checks of kube-scheduler and by our filters, in order, with the moves before it made. Nothing is
    moved: the steps are for you, one at a time, each when the pod before runs again. Of plans with as many restarts the
    one is preferred that loses the fewest GPU-hours: those that the pods have run since their start (status.startTime),
    as their checkpoints are unknown; an unknown start counts as the longest. With few moves the search is exact; else
    it is greedy, and says so. Exit 1 if there is no such plan.
    """


def plan_right_size(
    *,
    source: PrometheusOptions,
    since: Since = "7d",
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Find the smallest slice, share or product that would have carried each workload's peak, proven on the engine.

    A workload is judged where its use is known for a day and for nine tenths of the time, and its pods hold one GPU or
    slice each. The unit must have a fifth more memory and computation than the peak. Computation is the share of
    multiprocessors in use where DCGM_FI_PROF_SM_ACTIVE is exported; else any moment of full activity counts as the
    whole GPU. Another product is not proposed. Each patch was tried: admission, the filters and kube-scheduler's checks
    leave every pod a node. Nothing is written.
    """


def plan_node_template(
    *,
    file: Annotated[str, typer.Option("--filename", "-f", help="YAML or JSON of one Pod or workload; - is stdin.")],
    fleet: GovernedFleet,
    namespace: Namespace = None,
    output: Annotated[str, output_of("yaml", "json")] = "yaml",
) -> None:
    """Show what a new node would need for a pod: GPU products, driver, labels, tolerated taints, resources.

    It is printed as requirements of a Karpenter NodePool (node_pool) and as node-template tags of the Cluster
    Autoscaler (tags), so that a group without nodes is known to fit. A fleet is not needed; with one, admission adds
    tolerations of the taints of its nodes. Exit 1 if no product fits.
    """


def plan_claims(
    *,
    nodes: Nodes = "",
    fleet: GovernedFleet,
    output: Output = "text",
) -> None:
    """Show what a move of nodes from the device plugin to DRA changes: what pods become, and the order of the nodes.

    Each GPU pod of the fleet is converted as admission does it with the policy field convertToClaims. A node can move
    when all pods on it have an equivalent claim: shares of GPUs, by time-slicing, MPS or HAMi, have none, and neither
    has a MIG slice that is called nvidia.com/gpu. The nodes with the fewest pods come first, and only nodes that have
    moved take the evicted pods. The way back is to switch the field off and to create the pods anew; a node is drained
    for it as well. Exit 1 if a node cannot move.
    """


def plan_claim_templates(
    *,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", help="YAML or JSON of Pods and workloads; - is stdin."),
    ] = None,
    fleet: GovernedFleet,
    namespace: Namespace = None,
) -> None:
    """Write the ResourceClaimTemplates with which GPU pods claim their GPUs through DRA, for kubectl apply.

    They are for the Pods and workloads of the files, or without files for those of the fleet. The policy field
    admission.convertToClaims has admission use them. Their names depend on their content alone: pods of one namespace
    with equal needs share one, and writing them again changes nothing. Pods that have no equivalent are comments.
    """
