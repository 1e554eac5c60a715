# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher replay`: decides every line of a decision log again, and shows the decisions that differ."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.markup import escape

from app.api.decision_replay import DECISION_MEMBERS, DifferingDecision, Line, read_lines, replay_decisions
from app.cli.output import Output, show
from app.cli.progress import show_count
from app.cli.source import DemoFleet, Policies, Snapshots
from app.server.composition import build
from app.server.service import Service
from app.settings import FilterAnswer, Settings
from app.values.errors import BadInput
from app.values.reasons import counted

LINES_SHOWN = 20
Logs = Annotated[list[Path], typer.Argument(help="Files of serve --decision-log, the oldest first.")]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay. `other_policies` counts lines recorded under other policies than those of the replay."""

    lines: int
    other_policies: int
    differing: tuple[DifferingDecision, ...]


def replay(
    logs: Logs,
    snapshot: Snapshots = None,
    demo_fleet: DemoFleet = None,
    policies: Policies = None,
    recount: Annotated[bool, typer.Option(help="As the service that wrote the log: serve --recount.")] = False,
    filter_answer: Annotated[
        str, typer.Option(help="As the service that wrote the log: all, shortlist or best.")
    ] = "shortlist",
    output: Output = "text",
) -> None:
    """Decide every line of a decision log again, and show the decisions that differ; exit 1 if any does.

    The fleet is that of the snapshot: one taken when the log began shows what other policies, or another version of
    gpu-usher, would have decided. For a log of `serve --demo` or `--snapshot` give --recount. Lines are decided in
    their order, because memory of shared GPUs is promised from one to the next.
    """
    service = offline_service(snapshot, demo_fleet, policies, recount, filter_answer)
    lines = read_logs(logs)
    other = sum(line.get("policy_hash", "") not in ("", service.policies.hash) for line in lines)
    with show_count(replay_decisions(lines, service), "deciding again", len(lines)) as differences:
        differing = tuple(difference for difference in differences if difference is not None)
        result = ReplayResult(len(lines), other, differing)
    show(result, output, lambda console: _show(console, result))
    raise typer.Exit(1 if result.differing else 0)


def offline_service(
    snapshots: list[Path] | None,
    demo_fleet: str | None,
    policies: Path | None,
    recount: bool = True,
    filter_answer: str = "shortlist",
) -> Service:
    """Build the service with a snapshot or sample fleet, without listeners and without files left behind.

    Raises BadInput.
    """
    if not (snapshots or demo_fleet):
        raise BadInput("got no fleet, wants --snapshot FILE or --demo-fleet NAME")
    if filter_answer not in get_args(FilterAnswer):
        raise BadInput(f"--filter-answer: got {filter_answer[:20]!r}, wants {' or '.join(get_args(FilterAnswer))}")
    with tempfile.TemporaryDirectory() as folder:
        return build(
            Settings(
                demo=bool(demo_fleet),
                demo_fleet=demo_fleet or "",
                snapshots=tuple(snapshots or ()),
                policies=policies,
                recount="true" if recount else "false",
                filter_answer=cast(FilterAnswer, filter_answer),
                certs=Path(folder),
            )
        )


def read_logs(logs: list[Path]) -> list[Line]:
    """Read decision logs in order.

    Raises BadInput.
    """
    return list(chain.from_iterable(map(_read_log, logs)))


def _read_log(path: Path) -> Iterator[Line]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from read_lines(str(path), file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}: wants a file of serve --decision-log") from error


def _show(console: Console, result: ReplayResult) -> None:
    for difference in result.differing[:LINES_SHOWN]:
        title = f"[yellow]line {difference.line}[/] [bold]{difference.verb}[/] {escape(difference.pod)}"
        console.print(f"{title}: {escape(_change(difference))}")
    if len(result.differing) > LINES_SHOWN:
        console.print(f"and {len(result.differing) - LINES_SHOWN} more; -o json has all of them")
    if result.other_policies:
        console.print(f"[dim]{counted(result.other_policies, 'decision')} recorded under other policies[/]")
    console.print(f"{counted(result.lines, 'decision')}: {len(result.differing) or 'none'} different now")


def _change(difference: DifferingDecision) -> str:
    parts = [
        f"{key} {_words(difference.was[key])}, now {_words(difference.now[key])}"
        for key in DECISION_MEMBERS
        if key != "answer" and difference.was[key] != difference.now[key]
    ]
    return "; ".join(parts) or "another answer in detail"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{code} {count}" for code, count in sorted(value.items())) or "none"
    return value if isinstance(value, str) else " | ".join(value) or "none"
