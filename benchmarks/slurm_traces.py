"""Record traces of a real Slurm, which the simulator of benchmarks/slurm_chaos.py must reproduce.

    python benchmarks/slurm_traces.py            # records all scenarios anew, about eight minutes on two cores
    python benchmarks/slurm_traces.py --compare  # plays them again and prints the scenarios that differ

Each scenario of tests/slurm/traces.py is played on the private Slurm of tests/slurm/cluster.py; its answers and the
state of every job after each step go to tests/slurm/traces.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.slurm.cluster import Cluster, lacking  # noqa: E402
from tests.slurm.traces import RECORDED, SCENARIOS, RealCluster, recorded, trace  # noqa: E402


def main() -> int:
    """Play the scenarios; return 1 if a comparison finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="write nothing, print differences from the record")
    values = parser.parse_args()
    if lacking():
        sys.exit(f"no Slurm here ({', '.join(lacking())}): make slurm")
    traces = []
    with Cluster(MinJobAge=60) as cluster, tempfile.TemporaryDirectory() as scratch:
        os.environ.update(cluster.env)
        version = cluster.run("sbatch", "--version").stdout.split()[-1]
        for name, steps in SCENARIOS.items():
            folder = Path(scratch) / name
            folder.mkdir()
            traces.append(trace(name, steps, RealCluster(cluster, folder)))
            print(name, flush=True)
            cluster.wait(lambda: cluster.run("scancel", "--me") and not cluster.squeue(), every=0.5)
    if values.compare:
        different = [new["name"] for new, old in zip(traces, recorded(), strict=True) if new != old]
        print(f"{len(different)} of {len(traces)} differ: {', '.join(different)}")
        return int(bool(different))
    lines = ",\n".join(json.dumps(trace) for trace in traces)
    RECORDED.write_text(f'{{"slurm": "{version}", "traces": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
