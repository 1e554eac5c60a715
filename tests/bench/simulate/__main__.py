# SPDX-License-Identifier: Apache-2.0
"""Plays a trace of a real cluster, or a synthetic one, against the engine: `python -m tests.bench.simulate --help`.

python -m tests.bench.simulate --trace traces/ --workload default,gpuspec33 --seeds 42-51 --processes 0
python -m tests.bench.simulate --nodes 40 --policies Fragmentation=5+Packing=1,fgd --history online -o json
python -m tests.bench.simulate --nodes 40 --load 0.9,1 --pods 500 --policies shortlist,bestfit --history online
"""

import typer

from tests.bench.simulate.command import simulate

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command()(simulate)

if __name__ == "__main__":
    app()
