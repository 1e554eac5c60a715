# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.guided -runs=50000 -seed=1125`: inputs led by what code they reach (atheris, libFuzzer).

Options are libFuzzer's. A crash ends the run, is shown with its traceback, and its input kept in a file.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["app"]):
    from tests.fuzz.led import PLAYED, mutate, play

LARGEST_BYTES = 1 << 15
"""Of an input: the largest recorded review has 9 kB, and libFuzzer takes the time that large ones cost."""


def write_good_inputs(directory: Path) -> None:
    """Write what the fuzzer starts from: every good input of every target."""
    for index, (_, good) in enumerate(PLAYED):
        for number, body in enumerate(good):
            (directory / f"{index}-{number}").write_bytes(bytes([index]) + body)


with TemporaryDirectory() as name:
    write_good_inputs(Path(name))
    atheris.Setup(
        [sys.argv[0], f"-max_len={LARGEST_BYTES}", *sys.argv[1:], name], lambda data: play(data) and None,
        custom_mutator=mutate,
    )  # fmt: skip
    atheris.Fuzz()
