"""`r2v doctor`: checks that a pipeline can run here, each finding with its remedy.

    r2v doctor                                                    # on the login node; submits nothing
    srun --partition=gpu --gres=gpu:1 --time=5 r2v doctor         # inside a job: driver, CUDA, GPUs as well

On the login node it proposes a site profile, tests every header and a sentinel's directives (`sbatch --test-only`) and
checks conditions that sbatch does not: a missing QOS, a partition that is down. Inside a job it checks the needs of a
stage: the shared folder, every granted GPU, and submission from this node, which healing uses. WebArena is checked if
it is installed or its sites are named.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from r2v.environment import not_for_stages, removal_text
from r2v.envs.webarena.addresses import site_names
from r2v.envs.webarena.check import check_set_up, check_sites
from r2v.envs.webarena.home import is_installed
from r2v.errors import EnvironmentFault, LeaseConflict, R2VError, UsageError, nearest
from r2v.slurm.client import client
from r2v.slurm.client.client import Partition
from r2v.slurm.client.command import present
from r2v.slurm.client.sacct import memory
from r2v.slurm.client.variables import kept_from_queries
from r2v.slurm.doctor.check_results import Finding, bad, ok, warn
from r2v.slurm.doctor.node import TOKEN, in_a_job
from r2v.slurm.doctor.propose import proposal
from r2v.slurm.site import headers, requests
from r2v.slurm.site.directives import gpu_kind, minutes
from r2v.slurm.site.headers import Resources
from r2v.slurm.site.script_text import flaws, read_script
from r2v.slurm.site.site_profile import SITE
from r2v.storage.files import write_text
from r2v.storage.lease import lease
from r2v.storage.paths import CHAINS, SCRIPTS

NETWORK = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "panfs"),
    *("weka", "gluster", "afs", "orangefs", "pvfs", "9p", "fuse"),
)
"""Prefixes of the names of shared file systems."""
FREE_GB = 200
"""Free disk space that one of the large benchmarks may need."""
_WORLDS_REMEDY = "mend it, and `r2v webarena check` looks again (docs/webarena.md)"


def examine(root: Path = Path()) -> Iterator[Finding]:
    """Yield the findings of all checks that are possible on this machine, in order."""
    inside = bool(os.environ.get("SLURM_JOB_ID"))
    yield ok(f"Python {sys.version.split()[0]}, {sys.executable}, on {socket.gethostname()}")
    if inside:
        yield from in_a_job(root)
    elif not present():
        yield bad(
            "Slurm's commands are not on PATH",
            "log in to the cluster's login node, or run without Slurm: r2v run_all desk --here",
        )
    else:
        yield from _cluster(root)
    yield from _folders(root, inside)
    yield from worlds()


def _cluster(root: Path) -> Iterator[Finding]:
    try:
        partitions = client.partitions()
    except EnvironmentFault as error:  # every other check needs the controller
        yield bad(
            str(error),
            "`scontrol ping` tells whether the controller is up; if it is not, ask the cluster's administrators",
        )
        return
    yield ok(f"Slurm answers; partitions {', '.join(partition.name for partition in partitions)}")
    # Any job id will do: only the answer of slurmdbd matters.
    if down := client.accounting(["1"]).down:
        yield warn(f"accounting does not answer: {down}", "status and healing work without it; cost does not")
    else:
        yield ok("accounting answers")
    if ignored := kept_from_queries(os.environ):
        yield ok(f"kept from Slurm's programs: {', '.join(ignored)} (SBATCH_* become directives of each job)")
    if removed := not_for_stages(os.environ):
        yield ok(f"not given to stages: {removal_text(removed)}")
    for flaw in flaws(root):
        yield (bad if flaw.ends_jobs else warn)(f"{flaw.path}: {flaw.what}", flaw.remedy)
    by_name = {partition.name: partition for partition in partitions}
    yield from proposal(root, by_name)
    yield from _headers(root, by_name)
    if headers.scripts(root):
        yield _sentinel(root)


def _sentinel(root: Path) -> Finding:
    """Test the directives of a sentinel, which no header holds, with sbatch."""
    remedy = f"what it lacks goes under `sentinels` in {SITE} (r2v cluster set profile=... makes one)"
    try:
        answer = client.test_only(Resources(directives=requests.sentinel(root)).sbatch_args())
    except R2VError as error:
        return bad(f"a sentinel's line cannot be made: {error}", remedy)
    if not answer.ok:
        return bad(f"a sentinel's own line is refused: {answer.line}", remedy)
    return ok("a sentinel's own line is accepted by sbatch --test-only")


def _headers(root: Path, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    paths, good, largest = headers.scripts(root), 0, Resources()
    wrong: dict[Finding, list[str]] = {}
    if not paths:
        yield bad(f"no scripts in {root / SCRIPTS}", "cd to a project that `r2v init DIR` made, or to R2V's checkout")
    qualities = client.qos()
    for path in paths:
        try:
            request = headers.read(path)
        except R2VError as error:  # the other scripts are still worth checking
            yield bad(str(error), "mend that line")
            continue
        findings = [*_lacking(request, partitions)]
        qos = request.directives.get("qos")  # sbatch accepts a missing QOS unless the site enforces them
        if qos and qualities is not None and qos not in qualities:
            findings.append(
                bad(f"no QOS {qos}; {nearest(qos, qualities)}", "r2v cluster set qos=NAME, or qos= for none")
            )
        if not findings and not (answer := client.test_only([], read_script(path))).ok:
            findings.append(_refused(path.name, answer.line, request, partitions))
        for finding in findings:
            wrong.setdefault(finding, []).append(path.name)
        good += not findings
        largest = max(largest, request, key=lambda resources: resources.gpus)
    for finding, names in wrong.items():
        yield replace(finding, what=f"{', '.join(names)}: {finding.what}")
    if good:
        yield ok(f"{good} of {len(paths)} headers are accepted by sbatch --test-only")
    if largest.gpus:
        options = [
            word
            for word in largest.sbatch_args()
            if word.split("=")[0] in ("--partition", "--account", "--qos", "--gres", "--gpus", "--gpus-per-node")
        ]
        yield ok(f"for the node's side: srun {' '.join(options)} --time=5 {sys.executable} -m r2v doctor")


def _refused(name: str, refusal: str, request: Resources, partitions: Mapping[str, Partition]) -> Finding:
    """Return the finding for a header that sbatch refuses, naming the size that exceeds its partitions' nodes."""
    what = f"sbatch refuses it: {refusal}"
    requested = request.directives.get("partition", "").split(",")
    named = [partition for name, partition in partitions.items() if name in requested]
    count = request.directives.get("cpus-per-task", "")
    megabytes = (memory(request.directives.get("mem", "")) or 0) >> 20
    most_cpus = max((partition.cpus for partition in named), default=0)
    most_memory = max((partition.memory for partition in named), default=0)
    sizes = (
        ("cpus-per-task", int(count) if count.isdigit() else 0, most_cpus, ""),
        ("mem", megabytes, most_memory, "M"),
    )
    for directive, size, largest, unit in sizes:
        if size > largest > 0:
            cause = f"--{directive} asks for {size}{unit}, its largest node has {largest}{unit}"
            return bad(f"{what}; {cause}", f"r2v cluster set {headers.command_of(name)}.{directive}={largest}{unit}")
    return bad(what, "r2v cluster set partition=... cpu_partition=... account=... gpu=... qos=..., or mend its header")


def _lacking(request: Resources, partitions: Mapping[str, Partition]) -> Iterator[Finding]:
    """Yield findings about directives of a header that the cluster cannot satisfy, each with the available values."""
    # `partition` alone is written into the headers of jobs without a GPU as well
    elsewhere = f"r2v cluster set {'partition=NAME cpu_partition=NAME' if request.gpus else 'cpu_partition=NAME'}"
    for word in filter(None, request.directives.get("partition", "").split(",")):
        if word not in partitions:
            yield bad(f"no partition {word}; {nearest(word, partitions)}", elsewhere)
            continue
        partition, kind = partitions[word], gpu_kind(request.directives)
        offered = {item.split("(")[0] for item in partition.gres.split(",") if item.startswith("gpu")}
        kinds = {item.split(":")[1] for item in offered if item.count(":") == 2}
        if request.gpus and (not offered or kind and kinds and kind not in kinds):
            has = f"has {', '.join(sorted(offered))}" if offered else "has no GPU"
            yield bad(
                f"partition {word} {has}, asked for gpu:{kind or 'any'}",
                f"r2v cluster set gpu={sorted(kinds)[0]}" if kinds else elsewhere,
            )
        if not partition.up:
            yield warn(f"partition {word} is down", f"wait, or {elsewhere}")
        if (limit := minutes(partition.max_time)) and request.time_minutes > limit:
            yield bad(
                f"asks for {request.time_minutes} minutes, partition {word} gives {limit}",
                f"#SBATCH --time={partition.max_time} in each: a stage that is cut off goes on from its checkpoint",
            )


def _folders(root: Path, inside: bool) -> Iterator[Finding]:
    for name in ("data", "outputs", "results", "logs"):
        probe = root / name / f".doctor-{socket.gethostname()}-{os.getpid()}"
        try:
            probe.parent.mkdir(exist_ok=True)
            probe.write_text("")
            probe.unlink()
        except OSError as error:  # full or read-only; the other folders share its file system
            yield bad(
                f"{root / name} cannot be written: {error.strerror}",
                "make room, or mount it with write access, on login node and nodes alike",
            )
            return
    free, kind = shutil.disk_usage(root / "outputs").free / 1e9, _file_system(root / "outputs")
    summary = f"data, outputs, results and logs can be written; {free:.0f} GB free"
    yield ok(summary) if free >= FREE_GB else warn(summary, f"webarena and swebench may need {FREE_GB} GB each")
    if not inside and not kind.startswith(NETWORK):
        yield warn(
            f"outputs is on {kind}, which looks like a disk of this machine alone",
            "the nodes must see the same folder: r2v doctor inside a job tells",
        )
    yield _lease(root)
    if not inside:
        write_text(root / TOKEN, f"{socket.gethostname()} {time.time():.0f}\n")


def _lease(root: Path) -> Finding:
    """Check that a lease excludes a second holder."""
    path = root / CHAINS / f".doctor-{socket.gethostname()}-{os.getpid()}.lease"
    remedy = "put the checkout on a file system where a rename is atomic: here two submitters could both go ahead"
    try:
        with lease(path):
            try:
                with lease(path):  # a second holder: the file system does not exclude it
                    return bad(f"{path} was given to two at once", remedy)
            except LeaseConflict:
                return ok("a lease is given to one process at a time")
    except R2VError as error:
        return bad(str(error), remedy)


def _file_system(path: Path) -> str:
    """Return the type of a folder's file system, as named in /proc/mounts."""
    here, best = str(path.resolve()), ("", "an unknown file system")
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:  # not Linux
        return best[1]
    for line in lines:
        _, mount_point, kind = line.split()[:3]
        if (here + "/").startswith(mount_point.rstrip("/") + "/") and len(mount_point) >= len(best[0]):
            best = (mount_point, kind)
    return best[1]


def worlds() -> Iterator[Finding]:
    """Yield findings on WebArena's versions, language data and every site of each set that variables name, on the login
    node and inside a job: a site may answer only one of them. Nothing if WebArena is neither installed nor named by a
    variable; warnings only if no variable names a site."""
    sets = site_names()
    if not sets and not is_installed():
        return
    for sound, line in check_set_up():
        lacks = bad if sets else warn
        yield ok(f"webarena: {line}") if sound else lacks(f"webarena: {line}", _WORLDS_REMEDY)
    for name in sets:
        which = f"webarena {name}" if name else "webarena"
        try:
            for sound, line in check_sites(name):
                yield ok(f"{which}: {line}") if sound else bad(f"{which}: {line}", _WORLDS_REMEDY)
        except UsageError as error:
            yield bad(str(error), _WORLDS_REMEDY)
