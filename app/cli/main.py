# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher`: the verbs, and the one place where an error becomes an exit code.

0 fine, 1 a check failed, 2 bad input, 3 our own fault.
"""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from app import __version__
from app.cli.advise import advice
from app.cli.certs import certs
from app.cli.demo import demo
from app.cli.diff import diff
from app.cli.doctor import doctor
from app.cli.explain import explain_pod
from app.cli.export import export
from app.cli.help import Group, Verb
from app.cli.inventory import inventory
from app.cli.json_schema import schema
from app.cli.lint import lint
from app.cli.mutate import mutate
from app.cli.policy_tests import run_cases
from app.cli.replay import replay
from app.cli.scheduler_config import scheduler_config
from app.cli.serve import serve
from app.cli.simulate import simulate
from app.cli.whatif import whatif
from app.values.errors import BadInput, UsherError

app = typer.Typer(
    name="gpu-usher",
    help="Make every GPU pod correct at admission, and seat it on the right GPU at scheduling.",
    no_args_is_help=True,
    cls=Group,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    """Make every GPU pod correct at admission, and seat it on the right GPU at scheduling."""
    if show:
        print(__version__)
        raise typer.Exit


VERBS = (
    ("serve", serve),
    ("demo", demo),
    ("explain", explain_pod),
    ("doctor", doctor),
    ("inventory", inventory),
    ("mutate", mutate),
    ("diff", diff),
    ("replay", replay),
    ("simulate", simulate),
    ("lint", lint),
    ("test", run_cases),
    ("schema", schema),
    ("scheduler-config", scheduler_config),
)
for name, verb in VERBS:
    app.command(name, cls=Verb)(verb)
app.add_typer(certs, name="certs")
app.add_typer(export, name="export")
app.add_typer(whatif, name="whatif")
app.add_typer(advice, name="advise")


def main() -> None:
    """Run a verb; an error of ours is one line on stderr, with the remedy it carries."""
    try:
        app()
    except UsherError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, BadInput) else 3)


if __name__ == "__main__":
    main()
