"""The commands of a chain of jobs: `r2v run_all, resume, cancel`, and the views of what they left.

r2v run_all webarena --dry-run          r2v status --watch             r2v explain webarena_noisy
r2v resume --from preference            r2v logs preference --errors   r2v cost
                                                                       r2v graph --format mermaid
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from r2v.cli.options import SEED, add_allow_env, add_anyway, decimal, runs_code, whole
from r2v.constraints import Range, Text, require
from r2v.errors import InputError, UsageError
from r2v.log import logger

_CHAIN = "<benchmark>_<condition>, or the prefix of the configuration; may be left out where there is only one"
ClusterParser = TypeVar("ClusterParser", bound=argparse.ArgumentParser)


def add_commands(commands: argparse._SubParsersAction[ClusterParser]) -> None:
    """Add every command of this module to the command line."""
    _add_submitting(commands)
    status = _add(commands, "status", "the state of every job; exit code 0 done, 1 failed, 10 active", _status)
    status.add_argument("names", nargs="*", metavar="CHAIN", help=_CHAIN)
    status.add_argument(
        "--watch",
        action="store_true",
        help="show it again and again until no job is active; Slurm is asked once a minute (default: once)",
    )
    logs = _add(commands, "logs", "the log of a job's last attempt", _logs)
    logs.add_argument("words", nargs="+", metavar="[CHAIN] JOB", help="a job's name, its number, or a Slurm id")
    logs.add_argument("-f", "--follow", action="store_true", help="go on reading until the job ends")
    logs.add_argument("--errors", action="store_true", help="only the first traceback of each start")
    about = "what broke in a chain and how to go on; or who acted in a session or an episode, and why"
    explain = _add(commands, "explain", about, _explain)
    explain.add_argument(
        "words",
        nargs="*",
        metavar="[CHAIN] [JOB] | SESSION | EPISODE",
        help="a chain, and one of its jobs (default: every job of the only chain); or a served session, or an episode",
    )
    cost = _add(commands, "cost", "GPU-hours of each attempt, and how many were wasted", _cost)
    cost.add_argument("names", nargs="*", metavar="CHAIN", help=_CHAIN)
    graph = _add(commands, "graph", "which job waits for which", _graph)
    graph.add_argument("name", nargs="?", metavar="CHAIN", help=_CHAIN)
    graph.add_argument("--format", choices=["ascii", "mermaid", "json"], default="ascii", help="default: ascii")
    for parser in (status, cost):
        parser.add_argument("--json", action="store_true", help="print JSON, for a program to read")


def _add(
    commands: argparse._SubParsersAction[ClusterParser], name: str, help_: str, act: Callable[[argparse.Namespace], int]
) -> ClusterParser:
    parser = commands.add_parser(name, help=help_, description=help_)
    parser.set_defaults(act=act)
    return parser


def _add_submitting(commands: argparse._SubParsersAction[ClusterParser]) -> None:
    run = _add(commands, "run_all", "submit the whole pipeline to Slurm and return", _run_all)
    run.add_argument("benchmark", nargs="?", help="webarena, swebench, desk, or all (webarena and swebench)")
    run.add_argument("--config", metavar="FILE", help="configuration (default: configs/<benchmark>/noisy.yaml)")
    run.add_argument(
        "--seed", type=whole(SEED), metavar="N", help="the seed of every random draw (default: the configuration's)"
    )
    run.add_argument(
        "--without", nargs="+", default=[], metavar="JOB", help="jobs to leave out, by name or number (default: none)"
    )
    run.add_argument(
        "--dry-run", action="store_true", help="print the sbatch lines and sbatch's answers; submit nothing"
    )
    run.add_argument(
        "--local", "--here", dest="here", action="store_true", help="run the pipeline in this process, without Slurm"
    )
    resume = _add(commands, "resume", "go on with a chain: what failed, and all that waits for it", _resume)
    resume.add_argument("name", nargs="?", metavar="CHAIN", help=_CHAIN)
    for parser, replaced in ((run, "the file"), (resume, "the chain")):
        parser.add_argument(
            "--overrides",
            nargs="+",
            action="extend",
            default=[],
            metavar="KEY=VALUE",
            help=f"configuration values that replace those of {replaced} (default: none)",
        )
        add_allow_env(parser)
        add_anyway(parser)
        runs_code(parser)
        parser.add_argument(
            "--from",
            dest="start",
            metavar="JOB",
            help="the first job to run; its inputs must exist (default: the first)",
        )
        parser.add_argument(
            "--live",
            action="store_true",
            help="jobs run what is in the checkout when they start (default: the code and configuration of now)",
        )
        parser.add_argument(
            "--max-attempts",
            type=whole(Range(at_least=1, at_most=1000)),
            metavar="N",
            help="attempts of one job, healing included (default: 3)",
        )
        parser.add_argument(
            "--max-gpu-hours",
            type=decimal(Range(above=0)),
            metavar="H",
            help="GPU-hours of the chain, healing included (default: no limit)",
        )
    cancel = _add(commands, "cancel", "end every job of a chain, sentinels too; nothing heals afterwards", _cancel)
    cancel.add_argument("name", nargs="?", metavar="CHAIN", help=_CHAIN)
    heal = commands.add_parser("heal", description="what a sentinel runs when its stage has failed")
    heal.add_argument("name", metavar="CHAIN", help=_CHAIN)
    heal.add_argument(
        "job", nargs="?", default="", metavar="JOB", help="the job that failed, or all: one of them (default: none)"
    )
    heal.set_defaults(act=_heal)


def submission(values: argparse.Namespace) -> dict[str, Any]:
    """What a parsed `run_all` line gives to `r2v.slurm.run_all.submit`. Raises UsageError for a line without a
    benchmark."""
    if values.benchmark is None and values.config is None:
        raise UsageError("run_all needs a benchmark: webarena, swebench, desk or all; or --config FILE")
    seed = [] if values.seed is None else [f"seed={values.seed}"]
    limits = {} if values.max_attempts is None else {"max_attempts": values.max_attempts}
    return {
        "benchmark": values.benchmark,
        "config": values.config,
        "overrides": [*seed, *values.overrides],
        "start": values.start,
        "without": values.without,
        "dry_run": values.dry_run,
        "here": values.here,
        "allow_env": values.allow_env,
        "max_gpu_hours": values.max_gpu_hours,
        "live": values.live,
        **limits,
    }


def resumption(values: argparse.Namespace) -> dict[str, Any]:
    """What a parsed `resume` line gives to `r2v.slurm.run_all.resume`. Raises UsageError where no chain is meant."""
    return {
        "name": chain_name(values),
        "start": values.start,
        "overrides": values.overrides,
        "allow_env": values.allow_env,
        "max_attempts": values.max_attempts,
        "max_gpu_hours": values.max_gpu_hours,
        "live": values.live,
    }


def _run_all(values: argparse.Namespace) -> int:
    from r2v.slurm import run_all
    from r2v.slurm.site import script_text

    if not values.here:
        script_text.report()
    return run_all.submit(**submission(values))


def _resume(values: argparse.Namespace) -> int:
    from r2v.slurm import run_all
    from r2v.slurm.site import script_text

    script_text.report()
    return run_all.resume(**resumption(values))


def _cancel(values: argparse.Namespace) -> int:
    from r2v.slurm import run_all

    return run_all.cancel(name=chain_name(values))


def chain_name(values: argparse.Namespace) -> str:
    """The chain that a parsed line names, or the only one there is. Raises UsageError naming those there are."""
    from r2v.slurm.views.status import chosen

    return chosen(Path(), values.name)


def _heal(values: argparse.Namespace) -> int:
    from r2v.slurm.chain.chain import WHOLE
    from r2v.slurm.healing import sentinels
    from r2v.slurm.healing.reconcile import by_sentinel

    require("CHAIN", Text(longest=400, pattern=r"\w[\w.:-]*", meaning="the name of a chain, not a path"), values.name)
    code = by_sentinel(values.name, values.job)
    watched = sentinels.watched_by(Path(), values.name) if values.job == WHOLE else [values.job] if values.job else []
    return max([sentinels.tell(values.name, job) for job in watched], default=0) or code


def _status(values: argparse.Namespace) -> int:
    from r2v.slurm.views import settle, status, status_text

    wanted = _wanted(values)
    readable = status.readable(wanted)
    if values.watch:
        return _watch(values, readable)
    statuses = status.statuses(settle.settled_inputs(readable))
    if values.json:
        print(json.dumps({"chains": [status_text.as_json(chain) for chain in statuses]}, indent=2))
    else:
        print("\n".join("\n".join(status_text.lines(chain)) for chain in statuses))
    code = status.overall(chain.exit_code for chain in statuses)
    return code if readable == wanted else InputError.exit_code


def _watch(values: argparse.Namespace, wanted: Sequence[str]) -> int:
    from r2v.slurm.views import watch

    if values.json:
        raise UsageError("status --watch --json: --watch is for people; a program asks `r2v status --json`")
    return watch.show(wanted)


def _wanted(values: argparse.Namespace) -> list[str]:
    """The chains that a line names, or all of them."""
    from r2v.slurm.views import status

    return [status.chosen(Path(), name) for name in values.names] or status.names() or [status.chosen(Path(), None)]


def _one_job(words: Sequence[str]) -> tuple[str, str | None]:
    """CHAIN JOB, or either of them alone where only one chain is there."""
    from r2v.slurm.views.status import chosen, names

    if len(words) > 2:
        raise UsageError(f"{' '.join(words)}: at most a chain and a job")
    if len(words) == 2 or words and words[0] in names():
        return chosen(Path(), words[0]), words[1] if len(words) == 2 else None
    return chosen(Path(), None), words[0] if words else None


def _logs(values: argparse.Namespace) -> int:
    from r2v.slurm.views import logs, settle

    name, word = _one_job(values.words)
    if word is None:
        raise UsageError(f"which job of {name}? r2v logs {name} JOB")
    inputs = settle.settled_inputs([name])
    chain, records = inputs.chains[name], inputs.records[name]
    id_ = logs.job_id(chain, records, word)
    if values.follow:
        if not logs.log_paths(Path(), id_):
            logger.info("job %s has not begun; waiting (Ctrl-C ends the waiting, not the job)", id_)
        for text in logs.follow(Path(), name, id_):
            print(text, end="", flush=True)
        return 0
    for path in logs.with_errors(Path(), chain, id_):
        text = path.read_text(errors="replace")
        logger.info("%s", path)
        if not values.errors:
            sys.stdout.write(text)
        elif found := logs.errors(text):
            print("\n".join(found))
        else:
            logger.info("no error in it")
    return 0


def _explain(values: argparse.Namespace) -> int:
    from r2v.serve.explain import explained
    from r2v.slurm.views import explain, logs, settle, status

    other = len(values.words) == 1 and values.words[0] not in status.names()
    if other and (lines := explained(Path(), values.words[0])):
        print("\n".join(lines))
        return 0
    name, job = _one_job(values.words)
    inputs = settle.settled_inputs([name])
    found = status.statuses(inputs)[0]
    word = logs.NUMBERS.get(job, job) if job else None
    if word and word not in {job_status.job for job_status in found.jobs}:
        logs.job_id(inputs.chains[name], inputs.records[name], word)
    print("\n".join(explain.explain(inputs.chains[name], found, inputs.records[name], word)))
    return 0


def _cost(values: argparse.Namespace) -> int:
    from r2v.slurm.views import cost, settle, status

    wanted = _wanted(values)
    readable = status.readable(wanted)
    settle.settled_inputs(readable)
    found = {name: cost.attempt_costs(name) for name in readable}
    if values.json:
        print(json.dumps({"chains": [cost.as_json(name, spent) for name, spent in found.items()]}, indent=2))
    else:
        print("\n".join("\n".join(cost.lines(name, spent)) for name, spent in found.items()))
    return 0 if readable == wanted else InputError.exit_code


def _graph(values: argparse.Namespace) -> int:
    from r2v.slurm.views import graph, settle, status

    name = status.chosen(Path(), values.name)
    inputs = settle.settled_inputs([name])
    chain, found = inputs.chains[name], status.statuses(inputs)[0]
    if values.format == "json":
        print(json.dumps(graph.as_json(chain, found), indent=2))
    else:
        print("\n".join((graph.mermaid_lines if values.format == "mermaid" else graph.ascii_lines)(chain, found)))
    return 0
