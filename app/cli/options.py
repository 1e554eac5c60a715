# SPDX-License-Identifier: Apache-2.0
"""The options that several verbs share; this module imports no other part of gpu-usher that takes time to import."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from app.demo.notation import DEFAULT
from app.settings import FLEETS
from app.values.errors import BadInput

FORMATS = ("text", "json", "yaml")


def in_words(choices: tuple[str, ...]) -> str:
    """Return choices as help and errors name them: `a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def one_of(*choices: str, names: tuple[str, ...], prefix: str) -> Any:
    """Make an option with a few values, named in its help and completed by shells.

    Other values are refused before the verb runs (BadInput).
    """

    def check(value: str) -> str:
        if value not in choices:
            raise BadInput(f"{names[-1]} {value[:20]}: wants {in_words(choices)}")
        return value

    help_text = f"{prefix}{in_words(choices)}."
    return typer.Option(*names, help=help_text, autocompletion=lambda: list(choices), callback=check)


def output_of(*formats: str) -> Any:
    """Make the option --output of a verb."""
    return one_of(*formats, names=("--output", "-o"), prefix="How to print the answer: ")


def refuse_several(*sources: tuple[str, object]) -> None:
    """Refuse options of which one makes the others meaningless.

    Raises BadInput.
    """
    given = [name for name, value in sources if value]
    if len(given) > 1:
        raise BadInput(f"got {' and '.join(given)}, wants one of them")


Output = Annotated[str, output_of(*FORMATS)]
Snapshots = Annotated[
    list[Path] | None,
    typer.Option(
        "--snapshot",
        help="Read a file of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`; may be repeated.",
    ),
]
DemoFleet = Annotated[
    str | None,
    typer.Option(
        "--demo-fleet",
        help=f"Use a sample fleet. --demo is short for --demo-fleet {DEFAULT}. One of {', '.join(FLEETS)}.",
        autocompletion=lambda: list(FLEETS),
    ),
]
Policies = Annotated[
    Path | None, typer.Option("--policies", help="Directory of policies; the shipped ones by default.")
]
OwnNamespace = Annotated[str, typer.Option(envvar="GPU_USHER_NAMESPACE", help="Where gpu-usher runs.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="For what names no namespace; by default that of the context."),
]
Nodes = Annotated[str, typer.Option("--nodes", help="Label selector, as of kubectl -l; empty is all GPU nodes.")]
Since = Annotated[str, typer.Option("--since", help="How far back to look, such as 12h, 7d or 4w.")]
Registry = Annotated[
    bool,
    typer.Option("--registry", help="Read the images from their registries, with the credentials of docker or podman."),
]
ProbePort = Annotated[int | None, typer.Option(help="Port for /livez and /readyz; none by default.")]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options that select a cluster, as kubectl does; the kubeconfig's `as` is honoured as well."""

    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Read the cluster of this file; by default that of kubectl.")
    ] = None
    context: Annotated[
        str | None, typer.Option("--context", help="Context of the kubeconfig; by default its current one.")
    ] = None

    @property
    def given(self) -> bool:
        """Whether an option selects the cluster."""
        return bool(self.kubeconfig or self.context)


@dataclass(frozen=True, slots=True)
class Fleet(ClusterOptions):
    """The options that select a fleet: a cluster, the files of a snapshot, or a sample fleet.

    Where none is given, it is the cluster that kubectl would use. Raises BadInput where several are.
    """

    snapshot: Snapshots = None
    demo_fleet: DemoFleet = None

    def __post_init__(self) -> None:
        """Refuse several sources, of which all but one would be ignored."""
        refuse_several(
            ("--demo-fleet", self.demo_fleet),
            ("--snapshot", self.snapshot),
            ("--kubeconfig" if self.kubeconfig else "--context", self.kubeconfig or self.context),
        )

    @property
    def live(self) -> bool:
        """Whether a cluster is read."""
        return not (self.snapshot or self.demo_fleet)

    @property
    def given(self) -> bool:
        """Whether an option selects a fleet."""
        return bool(self.snapshot or self.demo_fleet or self.kubeconfig or self.context)


@dataclass(frozen=True, slots=True)
class GovernedFleet(Fleet):
    """The options that select a fleet and its policies."""

    policies: Policies = None


@dataclass(frozen=True, slots=True)
class PrometheusOptions:
    """The options that name the Prometheus from which the use of GPUs is read."""

    prometheus: Annotated[
        str | None, typer.Option("--prometheus", help="A Prometheus with DCGM's metrics of pods.")
    ] = None
    prometheus_token_file: Annotated[
        Path | None, typer.Option("--prometheus-token-file", help="A file with a bearer token for it.")
    ] = None
