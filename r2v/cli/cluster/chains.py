"""The commands of a chain of jobs: `r2v run_all, resume, cancel`, and its views.

r2v run_all webarena --dry-run          r2v status --watch             r2v explain webarena_noisy
r2v resume --from preference            r2v logs preference --errors   r2v cost
                                                                       r2v graph --format mermaid
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.cli.options import Parser, add_overrides, add_word, positive, whole
from r2v.constraints import Text, require
from r2v.errors import InputError, UsageError
from r2v.log import logger

if TYPE_CHECKING:
    from r2v.pipeline.local_run import LocalRun

_CHAIN = "<benchmark>_<condition>, or the prefix of the configuration; may be omitted if there is only one"
_SUBMITTED = ("start", "allow_env", "max_attempts", "max_gpu_hours", "live")
"""Options of both submitting commands, by the argument names of `r2v.slurm.run_all`."""


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add every command of this module to the command line."""
    _add_submitting(commands)
    status = add_word(
        commands, "status", "the state of every job and local run; exit code 0 done, 1 failed, 10 active", _status
    )
    status.add_argument("names", nargs="*", metavar="CHAIN", help=_CHAIN)
    status.add_argument(
        "--watch",
        action="store_true",
        help="repeat until no job is active; Slurm is queried once a minute (default: once)",
    )
    logs = add_word(commands, "logs", "the log of a job's last attempt, or of a stage of a local run", _logs)
    logs.add_argument("words", nargs="+", metavar="[CHAIN] JOB", help="a job's name, its number, or a Slurm id")
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines until the job ends")
    logs.add_argument("--errors", action="store_true", help="only the first traceback of each start")
    about = "explain a chain's failure and its remedy; or who acted in a session or an episode, and why"
    explain = add_word(commands, "explain", about, _explain)
    explain.add_argument(
        "words",
        nargs="*",
        metavar="[CHAIN] [JOB] | SESSION | EPISODE",
        help="a chain, and one of its jobs (default: every job of the only chain); or a served session, or an episode",
    )
    explain.add_argument("--sessions", action="store_true", help="list the served sessions (default: explain one)")
    cost = add_word(
        commands,
        "cost",
        "GPU- and CPU-hours of each attempt and local run, and dollars paid",
        _cost,
    )
    cost.add_argument("names", nargs="*", metavar="CHAIN", help=_CHAIN)
    graph = add_word(commands, "graph", "print the dependencies of a chain's jobs", _graph)
    graph.add_argument("name", nargs="?", metavar="CHAIN", help=_CHAIN)
    graph.add_argument("--format", choices=["ascii", "mermaid", "json"], default="ascii", help="default: ascii")
    for parser in (status, cost):
        parser.add_argument("--json", action="store_true", help="print JSON, for a program to read")


def _add_submitting(commands: argparse._SubParsersAction[Parser]) -> None:
    run = add_word(commands, "run_all", "submit the whole pipeline to Slurm and return", _run_all)
    run.add_argument("benchmark", nargs="?", help="webarena, swebench, desk, or all (webarena and swebench)")
    run.add_argument("--config", metavar="FILE", help="configuration (default: configs/<benchmark>/noisy.yaml)")
    run.add_argument(
        "--without", nargs="+", default=[], metavar="JOB", help="jobs to leave out, by name or number (default: none)"
    )
    run.add_argument(
        "--dry-run", action="store_true", help="print the sbatch lines and sbatch's answers; submit nothing"
    )
    run.add_argument(
        "--local", "--here", dest="here", action="store_true", help="run the pipeline in this process, without Slurm"
    )
    resume = add_word(commands, "resume", "resume a chain: its failed jobs, and those that depend on them", _resume)
    resume.add_argument("name", nargs="?", metavar="CHAIN", help=_CHAIN)
    for parser, replaced in ((run, "the file"), (resume, "the chain")):
        add_overrides(parser, f"configuration values that replace those of {replaced}")
        parser.set_defaults(sends_keys=True, runs_code=True)
        parser.add_argument(
            "--from",
            dest="start",
            metavar="JOB",
            help="the first job to run; its inputs must exist (default: the first)",
        )
        parser.add_argument(
            "--live",
            action="store_true",
            help="jobs run the checkout as it is when they start (default: the present code and configuration)",
        )
        parser.add_argument(
            "--max-attempts",
            type=whole(1, 1000),
            metavar="N",
            help="attempts of one job, healing included (default: 3)",
        )
        parser.add_argument(
            "--max-gpu-hours",
            type=positive,
            metavar="H",
            help="GPU-hours of the chain, healing included (default: no limit)",
        )
    run.add_argument("--take-over", action="store_true", help="take over a chain that another user submitted")
    run.set_defaults(max_attempts=3)
    cancel = add_word(commands, "cancel", "cancel every job of a chain, sentinels too; nothing heals then", _cancel)
    cancel.add_argument("name", nargs="?", metavar="CHAIN", help=_CHAIN)
    heal = commands.add_parser("heal", description="Reconcile a chain: the command of a sentinel.")
    heal.add_argument("name", metavar="CHAIN", help=_CHAIN)
    heal.add_argument(
        "job", nargs="?", default="", metavar="JOB", help="the job that failed, or all: one of them (default: none)"
    )
    heal.set_defaults(act=_heal)


def submission(values: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `r2v.slurm.run_all.submit` from a `run_all` line. Raises UsageError without benchmark."""
    if values.benchmark is None and values.config is None:
        raise UsageError("run_all needs a benchmark: webarena, swebench, desk or all; or --config FILE")
    names = ("benchmark", "config", "overrides", "without", "dry_run", "here", "take_over", *_SUBMITTED)
    return {name: getattr(values, name) for name in names}


def resumption(values: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `r2v.slurm.run_all.resume` from a `resume` line. Raises UsageError if it has no chain."""
    return {"name": chain_name(values), **{name: getattr(values, name) for name in ("overrides", *_SUBMITTED)}}


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
    """Return the chain that a parsed line names, or the only one. Raises UsageError listing the existing ones."""
    from r2v.slurm.views.sources import chosen

    return chosen(Path(), values.name)


def _heal(values: argparse.Namespace) -> int:
    from r2v.slurm.chain.chain import WHOLE
    from r2v.slurm.healing import sentinels
    from r2v.slurm.healing.reconcile import by_sentinel

    require("CHAIN", Text(longest=400, pattern=r"\w[\w.:-]*", meaning="the name of a chain, not a path"), values.name)
    code = by_sentinel(values.name, values.job)
    watched = sentinels.watched_by(Path(), values.name) if values.job == WHOLE else [values.job] if values.job else []
    return max([sentinels.notify(values.name, job) for job in watched], default=0) or code


def _status(values: argparse.Namespace) -> int:
    from r2v.slurm.views import local, status
    from r2v.slurm.views.chain_status import overall, settled, statuses

    if values.watch and values.json:
        raise UsageError("status --watch --json: --watch is for people; a program asks `r2v status --json`")
    here = _local(values.names)
    selected, readable = _select(values.names, here)
    if values.watch and readable:
        return status.watch(readable)
    while values.watch and any(local.state(Path(), run)[1] == local.ACTIVE for run in here.values()):
        print("\n".join("\n".join(local.lines(Path(), run)) for run in here.values()), flush=True)
        time.sleep(status.LOOK_EVERY)
        here = _local(values.names)
    shown = statuses(settled(readable)) if readable else []
    if values.json:
        runs = [local.as_json(Path(), run) for run in here.values()]
        print(json.dumps({"chains": [status.as_json(chain) for chain in shown], "local": runs}, indent=2))
    else:
        blocks = [*map(status.lines, shown), *(local.lines(Path(), run) for run in here.values())]
        print("\n".join("\n".join(block) for block in blocks))
    if readable != selected:
        return InputError.exit_code
    return overall([*(chain.exit_code for chain in shown), *(local.state(Path(), run)[1] for run in here.values())])


def _local(named: Sequence[str] = ()) -> dict[str, LocalRun]:
    """Return the runs outside Slurm that a line names, or all, the newest last; not those with a chain's name."""
    from r2v.pipeline.local_run import local_runs
    from r2v.slurm.views.sources import names

    chains = names()
    return {run.name: run for run in local_runs(Path()) if run.name not in chains and (not named or run.name in named)}


def _select(named: Sequence[str], here: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the chains that a line names in addition to local runs (`here`), or all chains; and the readable ones
    among them. Raises UsageError for a name that is neither, or if there are no chains and runs."""
    from r2v.slurm.views.sources import chosen, names, readable

    selected = [chosen(Path(), name) for name in named if name not in here] if named else names()
    if not selected and not here:
        selected = [chosen(Path(), None)]
    return selected, readable(selected)


def _one_job(words: Sequence[str]) -> tuple[str, str | None]:
    """Return chain and job of CHAIN JOB, or of either of them alone if there is only one chain."""
    from r2v.slurm.views.sources import chosen, names

    if len(words) > 2:
        raise UsageError(f"{' '.join(words)}: at most a chain and a job")
    if len(words) == 2 or words and words[0] in names():
        return chosen(Path(), words[0]), words[1] if len(words) == 2 else None
    return chosen(Path(), None), words[0] if words else None


def _logs(values: argparse.Namespace) -> None:
    from r2v.pipeline.local_run import log_of
    from r2v.slurm.views import local, logs
    from r2v.slurm.views.chain_status import settled

    if (local_log := _local_log(values.words)) is not None:
        run, job = local_log
        path = log_of(Path(), run.name, job)
        logger.info("log: path=%s", path)
        if values.follow:
            for text in local.follow(Path(), run, job):
                print(text, end="", flush=True)
        else:
            _print_log(path, errors=values.errors)
        return
    name, word = _one_job(values.words)
    if word is None:
        raise UsageError(f"which job of {name}? r2v logs {name} JOB")
    files = settled([name]).files[name]
    id_ = logs.job_id(files, word)
    if values.follow:
        if not logs.log_paths(Path(), id_):
            logger.info("job has not begun, waiting (Ctrl-C ends the waiting, not the job): job=%s", id_)
        for text in logs.follow(Path(), name, id_):
            print(text, end="", flush=True)
        return
    for path in logs.with_errors(Path(), files.chain, id_):
        logger.info("log: path=%s", path)
        _print_log(path, errors=values.errors)


def _print_log(path: Path, *, errors: bool) -> None:
    from r2v.slurm.views import logs

    text = path.read_text(errors="replace")
    if not errors:
        sys.stdout.write(text)
    elif lines := logs.errors(text):
        print("\n".join(lines))
    else:
        logger.info("no error in it")


def _local_log(words: Sequence[str]) -> tuple[LocalRun, str] | None:
    """Return the local run and stage of a log: NAME STAGE, or STAGE of the newest run without chains; None for none."""
    from r2v.pipeline.local_run import log_of
    from r2v.slurm.views.logs import NUMBERS
    from r2v.slurm.views.sources import names

    here = [*_local(words[:1] if len(words) == 2 else ()).values()]
    if not here or (len(words) == 1 and names()):
        return None
    job = NUMBERS.get(words[-1], words[-1])
    return (here[-1], job) if log_of(Path(), here[-1].name, job).is_file() else None


def _explain(values: argparse.Namespace) -> None:
    from r2v.serve.accounts.explain import explained, listed_sessions, nearest_sessions
    from r2v.slurm.views import explain, logs
    from r2v.slurm.views.chain_status import settled, statuses
    from r2v.slurm.views.sources import names

    if values.sessions:
        return print("\n".join(listed_sessions(Path())))
    other = len(values.words) == 1 and values.words[0] not in names()
    if other and (lines := explained(Path(), values.words[0])):
        return print("\n".join(lines))
    if other and not names():
        raise UsageError(
            f"{values.words[0]:.200}: no chain of jobs, session or episode of r2v has this name; "
            f"{nearest_sessions(Path())}"
        )
    name, job = _one_job(values.words)
    (status,) = statuses(settled([name]))
    word = logs.NUMBERS.get(job, job) if job else None
    if word and word not in {entry.job for entry in status.jobs}:
        logs.job_id(status.files, word)
    print("\n".join(explain.explain(status, word)))


def _cost(values: argparse.Namespace) -> int:
    from r2v.llm.providers.spending.project import ProjectLedger
    from r2v.slurm.views import cost, local
    from r2v.slurm.views.chain_status import settled, statuses

    here = _local(values.names)
    selected, readable = _select(values.names, here)
    shown = statuses(settled(readable, costs=True)) if readable else []
    costs = {status.chain.name: cost.attempt_costs(status) for status in shown}
    ledger = ProjectLedger(Path())
    if values.json:
        chains = [cost.as_json(name, spent, ledger.committed_by(name)) for name, spent in costs.items()]
        runs = [local.as_json(Path(), run) for run in here.values()]
        print(json.dumps({"chains": chains, "local": runs}, indent=2))
    else:
        billed = (cost.lines(name, spent, ledger.committed_by(name)) for name, spent in costs.items())
        blocks = [*billed, *map(local.cost_lines, here.values())]
        print("\n".join("\n".join(block) for block in blocks))
    return 0 if readable == selected else InputError.exit_code


def _graph(values: argparse.Namespace) -> None:
    from r2v.slurm.views import graph
    from r2v.slurm.views.chain_status import settled, statuses

    (status,) = statuses(settled([chain_name(values)]))
    if values.format == "json":
        print(json.dumps(graph.as_json(status), indent=2))
    else:
        print("\n".join((graph.mermaid_lines if values.format == "mermaid" else graph.ascii_lines)(status)))
