"""Stage commands: `r2v collect`, `r2v train_policy`, ... one for each row of COMMANDS in `r2v.pipeline.jobs`.

No stage is named here: each row defines its command's options and results.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.cli.boundary import require_place
from r2v.cli.options import Parser, add_config_options, add_force, load_config
from r2v.errors import InputError
from r2v.log import logger
from r2v.pipeline.graph import as_configured, made_by, phases, possible
from r2v.pipeline.jobs import COMMANDS, job
from r2v.pipeline.rows import Command, named

if TYPE_CHECKING:
    from r2v.config import Config
    from r2v.storage.integrity import Artifact


def is_stage(words: Sequence[str]) -> bool:
    """True if a command line runs a stage."""
    return any(row.name == words[0] for row in COMMANDS) if words else False


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add every command of the table to the command line."""
    for row in COMMANDS:
        parser = commands.add_parser(row.name, help=row.help, description=f"{row.help}.")
        add_config_options(parser)
        parser.set_defaults(sends_keys=True, runs_code=True)
        add_force(parser)
        for flag in row.flags:
            parser.add_argument(
                flag.name,
                dest=flag.key,
                metavar=flag.metavar,
                nargs="+" if flag.many else None,
                help=flag.help,
            )
        _add_row_options(parser, row)
        parser.set_defaults(act=_act, row=row)


def _add_row_options(parser: argparse.ArgumentParser, row: Command) -> None:
    own = phases(row)
    if row.output:
        parser.add_argument(
            "--output",
            type=Path,
            metavar="DIR",
            help="publish the result here (default: its place in the table; `r2v stages` lists them)",
        )
    if len(own) > 1:
        parser.add_argument(
            "--stage",
            choices=[*own, "all"],
            default="all",
            help=f"phase to train; all makes {', then '.join(made_by(row))} (default: all)",
        )
    for file_input in row.file_inputs:
        parser.add_argument(file_input.name, dest=file_input.name, type=Path, metavar="FILE", help=file_input.help)
    for option in row.instead:
        parser.add_argument(option.name, dest=option.name, action="store_true", help=option.help)
    if row.resumable:
        parser.add_argument(
            "--resume",
            type=Path,
            metavar="CHECKPOINT",
            help="resume from this checkpoint, which names configuration, data and output; needs no other option "
            "(default: start, or resume the newest attempt)",
        )


def _act(arguments: argparse.Namespace) -> None:
    row: Command = arguments.row
    if row.resumable and arguments.resume:
        return _resume(arguments.resume)
    config = load_config(arguments)
    for option in row.instead:
        if getattr(arguments, option.name):
            return print(named(option.call)(config))
    return _make(config, row, arguments)


def _make(config: Config, row: Command, arguments: argparse.Namespace) -> None:
    from r2v.pipeline.helping import help_job, helpers
    from r2v.pipeline.inputs import published, require_possible
    from r2v.pipeline.ready import require_cap
    from r2v.pipeline.run import run_job
    from r2v.storage.artifact import external
    from r2v.storage.record import UNATTENDED

    _require_places(config, row, arguments)
    own, artifacts = phases(row), dict[str, "Artifact"]()
    for file_input in row.file_inputs:
        if path := getattr(arguments, file_input.name):
            artifacts[file_input.job] = external(path)
    stage_names = made_by(row) if len(own) == 1 or arguments.stage == "all" else (arguments.stage,)
    rows = [as_configured(config, job(name)) for name in possible(config, stage_names)]
    for item in rows:
        require_possible(item.load().sections(config))
    if UNATTENDED not in os.environ:
        require_cap(config, rows, Path())
    for item in rows:
        name = item.name
        inputs = {need: artifacts[need] if need in artifacts else published(config, need) for need in item.inputs}
        if row.helped and config.rollout.helpers == "join":
            help_job(config, item, inputs)
            continue
        output: Path | None = arguments.output if row.output else None
        with helpers(config, item, int(config.rollout.helpers) if row.helped else 0, _files(row, arguments)):
            artifacts[name] = run_job(
                config,
                item,
                inputs,
                # The command `collect` makes a new run each time; only the whole pipeline reuses one.
                force=arguments.force or item.place is None,
                publish_at=output / name if output and len(own) > 1 else output,
                stop_unready=UNATTENDED in os.environ,
            ).artifact
    if any(job(name).shown for name in artifacts):
        from r2v.pipeline.report import report_of

        report_of(config, artifacts)


def _files(row: Command, arguments: argparse.Namespace) -> list[str]:
    """Return the options that name files to read, as words of a helper's command line."""
    given = ((option.name, getattr(arguments, option.name)) for option in row.file_inputs)
    return [word for name, path in given if path for word in (name, str(path))]


def _require_places(config: Config, row: Command, arguments: argparse.Namespace) -> None:
    """Raise InputError, before anything is written, if --output names a path that a result cannot replace."""
    if config.run.base is not None:
        require_place("run.base", Path(config.run.base))
    output: Path | None = getattr(arguments, "output", None)
    if output is None:
        return
    phased = len(phases(row)) > 1
    if not phased and output.exists() and not output.is_symlink():
        raise InputError(f"--output {output}: exists, and is no link of R2V's; move it away")
    require_place("--output", output if phased else output.parent)


def _resume(checkpoint: Path) -> None:
    from r2v.config import load
    from r2v.pipeline.run import run_job
    from r2v.storage.artifact import ATTEMPT, attempt_of
    from r2v.storage.artifact_manifest import ARTIFACT_MANIFEST, Damaged
    from r2v.storage.checkpoint import damage

    folder = checkpoint.resolve().parent
    finished = (folder / ARTIFACT_MANIFEST).exists()  # then `r2v gc` may have removed its checkpoints
    if not checkpoint.exists() and not finished:
        raise InputError(f"--resume {checkpoint}: no such checkpoint")
    name, inputs = attempt_of(folder)
    if not finished and (problem := damage(checkpoint.resolve())):
        raise InputError(
            f"--resume {checkpoint}: {problem}; name a whole checkpoint beside it, or run the stage's command, which "
            "takes the newest whole one"
        )
    config = load(folder / "config.yaml")
    if set(inputs) != set(as_configured(config, job(name)).inputs):
        raise Damaged(folder / ATTEMPT, f"it names {', '.join(sorted(inputs)) or 'no inputs'} as what {name} reads")
    parent = checkpoint.absolute().parent
    done = run_job(config, job(name), inputs, publish_at=parent if parent.is_symlink() else None)
    if not done.fresh:
        logger.info("  attempt already finished: checkpoint=%s result=%s", checkpoint, done.artifact.folder)
