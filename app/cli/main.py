# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher`: the entry point of the command line; here an error becomes one line on stderr and an exit code.

0 is success, 1 a failed check, 2 bad input, 3 our own failure, 130 an interrupt. Only the standard library is imported
before an interrupt is provided for, because the others take half a second.
"""

import os
import signal
import sys
import traceback
from typing import Any, NoReturn

from app import __version__

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""


def stop_at_once(_number: int, _frame: object) -> NoReturn:
    """End the process. Until a verb runs it holds nothing, and an interrupted import may raise anything."""
    os._exit(INTERRUPTED)


def main() -> None:
    """Run a verb; an expected error is printed as one line on stderr, with its remedy."""
    signal.signal(signal.SIGINT, stop_at_once)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if sys.argv[1:] == ["--version"]:  # the command line takes four times as long to import as Python to start
        print(__version__)
        return
    from app.values.errors import BadInput, UsherError

    try:
        code = run()
        sys.stdout.flush()
    except UsherError as error:
        code = report(str(error), 2 if isinstance(error, BadInput) else 3)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except OSError as error:  # of stdout, such as a full disk; every verb reports those of its own files
        code = report(f"stdout: {error.strerror or error}", 3)
    except Exception as error:  # noqa: BLE001  # a bug of ours is no failed check, whose code is 1
        traceback.print_exc()
        code = report(f"internal error ({type(error).__name__}): report it with the lines above", 3)
    signal.signal(signal.SIGINT, stop_at_once)
    sys.exit(code)


def run() -> int:
    """Run the verb of the command line and return its exit code; wrong options are one line too."""
    from typer import BadParameter
    from typer.main import get_command

    from app.cli.verbs import app

    usage_error: Any = BadParameter.__base__
    try:
        return get_command(app).main(prog_name="gpu-usher", standalone_mode=False) or 0
    except usage_error as error:
        command = error.ctx.command_path if error.ctx else "gpu-usher"
        message = " ".join(error.format_message().split()).rstrip(".")
        return report(f"{message}; see {command} --help", error.exit_code)


def report(message: str, code: int) -> int:
    """Print an error on stderr, in colour on a terminal, and return the exit code."""
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[1;31merror:\033[0m {message}" if colour else f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
