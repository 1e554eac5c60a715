# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.attacks`: run each attack on a replica of its own in a cgroup, and print what was measured.

`--against DIR` runs the replica from another checkout; `--minutes N` runs all attacks together for so long.
"""

import argparse
import multiprocessing
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.attacks.catalogue import ATTACKS, attack_until
from tests.attacks.measure import Figures, Observer, percentile
from tests.attacks.memory_cgroup import MemoryCgroup
from tests.attacks.target import Attack, raise_descriptor_limit
from tests.authorities import make_authority, write_leaf
from tests.replicas import Replica

ROUND_SECONDS = 20.0
MIB = 512
"""The memory limit of the Deployment in the shipped manifests."""
JOIN_SECONDS = 60.0
RESULTS = Path(__file__).parents[1] / "results" / "attacks.md"
HEAD = (
    "| attack | RSS before, most, end (MiB) | CPU of the loop | `/livez` p50, p99, most (ms) | probes failed "
    "| honest requests answered | p99 (ms) | replica |\n|---|---|---|---|---|---|---|---|"
)


def run(attacks: Sequence[Attack], seconds: float, checkout: Path | None) -> Figures:
    """Run attacks at once on a new replica; each attacker is a process of its own."""
    cgroup = MemoryCgroup(MIB)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = make_authority("only")
        write_leaf(authority, folder)
        (folder / "ca.crt").write_text(authority.pem, "ascii")
        code = f" && cd {checkout} && export PYTHONPATH={checkout}" if checkout is not None else ""
        replica = Replica("attacked", folder, folder, 0, shell=cgroup.enter + code)
        context = multiprocessing.get_context("spawn")
        try:
            observer = Observer(replica.process.pid, replica.tls, replica.ops, folder / "ca.crt")
            target = (replica.tls, replica.ops, str(folder / "ca.crt"), seconds)
            attackers = [
                context.Process(target=attack_until, args=(attack.name, *target), daemon=True) for attack in attacks
            ]
            for attacker in attackers:
                attacker.start()
            for attacker in attackers:
                attacker.join(seconds + JOIN_SECONDS)
                if attacker.is_alive():
                    attacker.kill()
            return observer.stop()
        finally:
            replica.stop()
            cgroup.close()


def row(what: str, figures: Figures) -> str:
    """Write the row of an attack."""
    rss, livez, honest = figures.rss_mib or [0], figures.livez, figures.honest
    failed = figures.honest_failures.total()
    cells = (
        what,
        f"{rss[0]}, {max(rss)}, {rss[-1]}",
        f"{figures.cpu_percent:.0f} %",
        ", ".join(
            f"{value * 1000:.0f}" for value in (percentile(livez, 0.5), percentile(livez, 0.99), max(livez or [0]))
        ),
        f"{figures.livez_failures.total()} of {len(livez)}" + _reasons(figures.livez_failures),
        f"{len(honest) - failed} of {len(honest)}" + _reasons(figures.honest_failures),
        f"{percentile(honest, 0.99) * 1000:.0f}",
        "killed" if figures.died else "lives",
    )
    return f"| {' | '.join(cells)} |"


def _reasons(failures: Counter[str]) -> str:
    """Return the most frequent failures, in brackets."""
    reasons = ", ".join(f"{count} × {reason}" for reason, count in failures.most_common(3))
    return f" ({reasons})" if reasons else ""


def main(words: list[str]) -> int:
    """Run the attacks that the arguments ask for; return 1 where a replica died."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("names", nargs="*", help="attacks to run; all by default")
    parser.add_argument("--against", type=Path, help="another checkout, whose app is attacked")
    parser.add_argument("--minutes", type=float, help="run all attacks together for so long")
    parser.add_argument("--seconds", type=float, default=ROUND_SECONDS, help="per attack, without --minutes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file for the table")
    options = parser.parse_args(words)
    chosen = [attack for attack in ATTACKS if not options.names or attack.name in options.names]
    raise_descriptor_limit()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that replica and attackers end with this process
    rows, died = [HEAD], False
    print(HEAD)
    rounds = [(f"all at once, {options.minutes:g} min", chosen)] if options.minutes else [(a.what, [a]) for a in chosen]
    for what, attacks in rounds:
        figures = run(attacks, options.minutes * 60 if options.minutes else options.seconds, options.against)
        died |= figures.died
        rows.append(row(what, figures))
        print(rows[-1], flush=True)
    options.out.write_text("# Attacks\n\n" + "\n".join(rows) + "\n", "utf-8")
    return int(died)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
