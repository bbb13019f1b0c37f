"""The commands that set up a project: `r2v init, doctor, cluster, prefetch`.

r2v init mine --profile nersc           r2v cluster set profile=gpu gpu=h100           r2v doctor
"""

from __future__ import annotations

import argparse
from pathlib import Path

from r2v.cli.options import Parser, add_config_options, add_word, load_config
from r2v.errors import EnvironmentFault, UsageError
from r2v.log import logger
from r2v.storage.paths import SCRIPTS

_RESET = "headers=shipped"
_SETTINGS = (
    "profile (nersc, tacc, pyxis, gpu, cpu, none), partition, cpu_partition, account, qos, gpu (a type, or none), mem, "
    "time, nodes or any other directive, for one script as train_policy.mem=120G; headers=shipped: undo all such edits "
    "first; without values: write scripts/slurm/site.yaml into the headers again (default)"
)


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add every command of this module to the command line."""
    about = "start a project: configurations, sbatch scripts and a site profile"
    more = "Existing files are never replaced."
    init = add_word(commands, "init", about, _init, more=more)
    init.add_argument("folder", type=Path, metavar="DIR", help="the folder of the project, created if missing")
    init.add_argument(
        "--benchmark",
        metavar="MODULE:CLASS",
        help="your own benchmark, for which configurations are written (default: only R2V's)",
    )
    init.add_argument(
        "--profile", default="none", metavar="NAME", help="site profile: nersc, tacc, pyxis, gpu, cpu (default: none)"
    )
    init.add_argument(
        "--teacher",
        metavar="PROVIDER:MODEL",
        help="the LLM of the written configurations, as openai:gpt-6.1-terra (default: the benchmark's expert)",
    )
    init.add_argument(
        "--student",
        metavar="MODEL",
        help="their small model: weights by name, or PROVIDER:MODEL, which is not trained (default: tiny)",
    )
    add_word(commands, "doctor", "check that a pipeline can run here; inside a job, the GPUs too", _doctor)
    cluster = add_word(commands, "cluster", "the headers of scripts/slurm: show them, or set all at once", _cluster)
    cluster.add_argument("what", choices=["show", "set"], help="show: print the headers; set: change them all")
    cluster.add_argument("values", nargs="*", metavar="KEY=VALUE", help=_SETTINGS)
    about = "download the models and images of a configuration's jobs, so that they run without a network"
    prefetch = add_word(commands, "prefetch", about, _prefetch)
    add_config_options(prefetch)
    prefetch.add_argument("--dry-run", action="store_true", help="print present and missing files; download nothing")


def _init(values: argparse.Namespace) -> None:
    from r2v.slurm.site.new_project import begin

    models = {"teacher": values.teacher, "student": values.student}
    written = begin(values.folder, profile=values.profile, benchmark=values.benchmark, **models)
    name = "paid" if any(models.values()) else "desk"
    name = values.benchmark.partition(":")[2].lower() if values.benchmark else name
    print(f"{len(written)} files in {values.folder}. Go on there:")
    print(f"  cd {values.folder}")
    print(f"  r2v run --config configs/{name}/noisy.yaml --dry-run     # what it would play, take and cost")
    print(f"  bash run_all.sh {name}                                   # as Slurm jobs; first: r2v doctor")


def _doctor(values: argparse.Namespace) -> int:
    from r2v.slurm.doctor import doctor

    wrong = False
    for finding in doctor.examine():
        print(finding.text, flush=True)
        wrong = wrong or finding.state == "bad"
    return EnvironmentFault.exit_code if wrong else 0


def _cluster(values: argparse.Namespace) -> None:
    from r2v.slurm.client import client
    from r2v.slurm.site import headers, new_project, script_text, write_headers

    paths = headers.scripts()
    if not paths:
        raise UsageError(f"no scripts in {SCRIPTS}; run this in R2V's checkout, or in a project of `r2v init DIR`")
    if values.what == "show" and values.values:
        raise UsageError(f"cluster show takes no values; r2v cluster set {' '.join(values.values)}")
    for flaw in script_text.flaws():
        logger.warning("script damaged: error=%s", flaw.line)
    if values.what == "set":
        words = [word for word in values.values if word != _RESET]
        changed = set(new_project.restore_headers() if _RESET in values.values else ())
        changed.update(write_headers.set_words(words, takes=client.takes_option))
        logger.info("headers written: files_changed=%d", len(changed))
    print("\n".join(headers.lines(paths)))


def _prefetch(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.prefetch import downloads

    for item in downloads(load_config(arguments)):
        here = item.here()
        if here or arguments.dry_run:
            print(f"{item.what}: {'here' if here else 'to be fetched'}")
        else:
            item.fetch(print)
