# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.guided -runs=50000 -seed=1125`: inputs guided by code coverage (atheris, libFuzzer).

The options are libFuzzer's. A crash ends the run and shows its traceback, and the input is kept in a file.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["app"]):
    from tests.fuzz.led import PLAYED, mutate, play

LARGEST_BYTES = 1 << 15
"""The largest input. The largest recorded review has 9 kB, and libFuzzer slows down with large inputs."""


def write_good_inputs(directory: Path) -> None:
    """Write the good inputs of every target, from which the fuzzer starts."""
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
