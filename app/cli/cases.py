# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher test`: run the cases beside the policies."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from app.cluster.files import read_knowledge, read_policies, shipped_policies
from app.errors import PolicyError
from app.explain.cases import read_case, run_case


def run_cases(
    directory: Annotated[
        Path | None, typer.Argument(help="Directory of policies, with cases/ below it; the shipped ones by default.")
    ] = None,
) -> None:
    """Run the policy cases: each a pod, some nodes, and what is expected of them."""
    directory = directory or shipped_policies()
    knowledge = read_knowledge()
    policies = read_policies(directory, knowledge)
    console = Console(highlight=False, soft_wrap=True)
    files = sorted((directory / "cases").glob("*.yaml"))
    if not files:
        raise PolicyError((f"{directory}/cases: no *.yaml in it: wants at least one case",))
    failed = 0
    for file in files:
        differences = list(run_case(read_case(str(file), file.read_text("utf-8")), policies, knowledge))
        failed += bool(differences)
        mark = "[red]fails[/]" if differences else "[green]holds[/]"
        console.print(f"{mark}  {file.stem.replace('-', ' ')}")
        for difference in differences:
            console.print(f"       {difference}", markup=False)
    console.print(f"{len(files) - failed} of {len(files)} cases hold")
    raise typer.Exit(1 if failed else 0)
