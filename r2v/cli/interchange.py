"""`r2v import` and `r2v export`: trajectories of other tools in, trajectories and trained bundles out; `r2v push` and
`r2v pull`: bundles, runs and reports to and from the Hugging Face hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from r2v.cli.options import Parser, add_config_options, add_word, load_config, whole
from r2v.errors import InputError, UsageError
from r2v.log import logger

IMPORT_FORMATS = (
    "served",
    *("messages", "claude-code", "codex", "responses", "sharegpt", "completion", "inspect", "tau-bench", "litellm"),
    *("atif", "sweagent"),
)
"""Names of `r2v.data.interchange.importing`, repeated here so that starting r2v does not import all its readers."""
_CLAIMS = {True: "say that they succeeded", False: "say that they failed", None: "say neither"}


def add_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `import`, `export`, `push` and `pull`."""
    _add_import(commands)
    _add_export(commands)
    _add_push(commands)
    _add_pull(commands)


def _add_import(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "import trajectories recorded by other tools as a run under data/runs"
    more = (
        "Formats: chat messages of OpenAI or Claude, session logs of Claude Code and Codex, Responses items, "
        "ShareGPT, TRL, results of inspect, verifiers, tau-bench and SWE-agent, ATIF, LiteLLM's request logs. Imported "
        "episodes were not executed here: they can be cloned, and enter no table."
    )
    parser = add_word(commands, "import", about, _import, more=more)
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="FILE",
        help="files (.jsonl, .json, .traj, .eval, .parquet), folders of them, or hub data sets (owner/name)",
    )
    parser.add_argument(
        "--format",
        choices=["auto", *IMPORT_FORMATS],
        default="auto",
        help="format of the records (default: auto, recognised from each record's content)",
    )
    parser.add_argument(
        "--benchmark",
        default=None,
        metavar="NAME",
        help="their benchmark, as in env.benchmark (default: logs, which has no world)",
    )
    parser.add_argument("--model", metavar="NAME", help="the model that acted (default: as recorded, else unknown)")
    parser.add_argument("--split", default="train", metavar="NAME", help="split of a hub data set (default: train)")
    parser.add_argument(
        "--limit",
        type=whole(1, 100_000_000),
        metavar="N",
        help="read at most the first N records (default: all)",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="skip and count bad records (default: import nothing if any is bad)"
    )
    parser.add_argument(
        "--run-tags", nargs="+", default=[], metavar="TAG", help="tags to find the run by (default: imported alone)"
    )
    parser.add_argument("--notes", default="", metavar="TEXT", help="a remark for the run's manifest (default: none)")


def _import(arguments: argparse.Namespace) -> None:
    from r2v.data.interchange.importing import LOGS_BENCHMARK, ImportRequest, import_trajectories
    from r2v.data.registry import DataRegistry

    selection = ImportRequest(
        sources=tuple(arguments.sources),
        format=arguments.format,
        benchmark=arguments.benchmark or LOGS_BENCHMARK,
        model=arguments.model,
        split=arguments.split,
        limit=arguments.limit,
    )
    done = import_trajectories(
        selection, DataRegistry(), skip_bad=arguments.skip_bad, tags=arguments.run_tags, notes=arguments.notes
    )
    read, run = done.read, done.run
    logger.info("  import finished: run_id=%s output=%s", run.run_id, run.output_dir)
    claims = ", ".join(f"{read.outcomes[claim]} {_CLAIMS[claim]}" for claim in _CLAIMS if read.outcomes[claim])
    formats = " and ".join(f"{count} of {name}" for name, count in sorted(read.formats.items()))
    logger.info(
        "  trajectories imported, none executed here: trajectories=%d steps=%d bad_skipped=%d formats=%s claims=%s",
        *(read.episodes, read.steps, read.num_bad, formats, claims),
    )
    if not done.fresh:
        logger.info("  the same content was imported before; nothing was written")


def _add_export(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "write the evaluated policy, verifier and router as a bundle, or episodes as chat messages or ATIF"
    parser = add_word(commands, "export", about, _export)
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="file or folder to write, which must not exist")
    add_config_options(parser)
    parser.add_argument(
        "--check", action="store_true", help="write nothing: hash every file of the bundle at OUTPUT (default: write)"
    )
    parser.add_argument(
        "--trajectories",
        metavar="FILE",
        help="write episodes: those of a trajectories file, or of the run of this id (default: write a bundle)",
    )
    parser.add_argument(
        "--format",
        choices=["messages", "atif", "episodes"],
        help="messages: one file of JSON lines; atif: a folder with one document per episode; episodes: R2V's own "
        "lines, converted from earlier versions (default: messages)",
    )
    parser.add_argument(
        "--successes",
        action="store_true",
        help="only episodes that succeeded, or whose log does not report a failure (default: all)",
    )


def _export(arguments: argparse.Namespace) -> None:
    from r2v.data.interchange.exporting import export_trajectories
    from r2v.data.registry import DataRegistry
    from r2v.data.store import TrajectoryStore

    if arguments.trajectories is None:
        return _bundle(arguments)
    if arguments.check or arguments.config or arguments.overrides:
        raise UsageError("export --trajectories: takes no --check, --config or --overrides, which are for bundles")
    path = _trajectories(arguments.trajectories)
    episodes = TrajectoryStore(path).iter_episodes()
    chosen = (episode for episode in episodes if episode.demonstrates or not arguments.successes)
    count = export_trajectories(chosen, arguments.output, arguments.format or "messages", DataRegistry())
    logger.info("  episodes exported: episodes=%d source=%s output=%s", count, path, arguments.output)


def _bundle(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.write_bundle import write_bundle
    from r2v.serve.bundle.manifest import read_bundle

    if arguments.format or arguments.successes:
        raise UsageError("export: --format and --successes are for episodes; name these with --trajectories FILE")
    if not arguments.check:
        write_bundle(load_config(arguments), arguments.output)
    bundle = read_bundle(arguments.output).manifest
    weights = f"{bundle.weights} weights of {bundle.base_model}"
    logger.info(
        "  bundle verified, every hash holds: bundle=%s files=%d threshold=%g llm_steps=%.1f%% of=%s model=%s",
        *(arguments.output, len(bundle.files), bundle.threshold, 100 * bundle.llm_call_rate),
        "steps" if bundle.labels == "executed" else "recorded steps (an imputed router: nothing was executed)",
        weights if bundle.weights != "none" else f"{bundle.base_model} by its API",
    )


def _trajectories(source: str) -> Path:
    """Return the named file, or the trajectories of the run with this id."""
    from r2v.data.registry import DataRegistry

    path = Path(source)
    if path.is_file():
        return path
    if path.exists() or "/" in source:
        raise InputError(f"--trajectories {source}: no trajectories file; name one, or the id of a run")
    return DataRegistry().get(source).trajectories


def _add_push(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "put a bundle, a run or a report on the Hugging Face hub"
    more = "Every hash is checked and every file searched for keys first. The token is HF_TOKEN's or `hf auth login`'s."
    parser = add_word(commands, "push", about, _push, more=more)
    parser.add_argument("source", metavar="WHAT", help="folder of a bundle, a run or a report, or the id of a run")
    parser.add_argument("repository", metavar="REPO", help="OWNER/NAME, created if missing")
    parser.add_argument(
        "--private", action="store_true", help="make the repository private (default: as the account is set up)"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the files to send, and send nothing")


def _push(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.hub import parcel_of, push

    parcel = parcel_of(arguments.source)
    full = parcel.repository(arguments.repository)
    for name in parcel.files:
        logger.info("  file: bytes=%d name=%s", (parcel.folder / name).stat().st_size, name)
    if arguments.dry_run:
        logger.info("  dry run, nothing sent: kind=%s repository=%s", parcel.kind, full)
    else:
        push(parcel, full, private=arguments.private)
        logger.info("  pushed: kind=%s repository=%s download=%s", parcel.kind, full, f"r2v pull {full}")


def _add_pull(commands: argparse._SubParsersAction[Parser]) -> None:
    about = "get a bundle, a run or a report that `r2v push` put on the Hugging Face hub"
    parser = add_word(commands, "pull", about, _pull, more="Every hash is checked, and no code is imported.")
    parser.add_argument(
        "repository", metavar="REPO", help="a bundle OWNER/NAME, a run datasets/OWNER/NAME, a report spaces/OWNER/NAME"
    )
    parser.add_argument(
        "output",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="folder to make (default: its name in outputs/bundles, data/runs or results/report)",
    )
    parser.add_argument("--revision", metavar="REV", help="commit, branch or tag (default: the newest commit of main)")


def _pull(arguments: argparse.Namespace) -> None:
    from r2v.pipeline.hub import pull

    folder = pull(arguments.repository, arguments.output, revision=arguments.revision)
    logger.info("  pulled, every hash holds: folder=%s", folder)
