"""`r2v run_all`, `resume`, `cancel`: a whole pipeline as Slurm jobs, submitted in seconds; no process stays behind.

    submit(benchmark="webarena")                     # validate, plan, submit the stages that are not up to date
    submit(benchmark="webarena", dry_run=True)       # print the plan, testing each header with sbatch --test-only
    resume(name="webarena_noisy", start="preference", overrides=["training.batch_size=2"])
    cancel(name="webarena_noisy")

A second run submits only missing jobs: queued jobs are adopted unless their headers were edited since, and artifacts
that are up to date are skipped. A second configuration is refused while jobs of the first are in the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from r2v.config import Config, load, to_yaml
from r2v.errors import LeaseConflict, MissingInput, R2VError, UsageError, nearest
from r2v.llm.providers import keys
from r2v.log import logger
from r2v.memory.profile_of_model import configured
from r2v.pipeline.graph import as_configured, untrained_line
from r2v.pipeline.inputs import flat, place_of, places_of, require_sendable_keys
from r2v.pipeline.jobs import JOBS, job
from r2v.pipeline.plan.dry_run import warnings
from r2v.pipeline.plan.jobs_to_do import PlannedJob, plan, require_worlds, touched, waiting
from r2v.pipeline.ready import require_cap
from r2v.pipeline.report import report_of
from r2v.pipeline.run import run_here
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import (
    WHOLE,
    Chain,
    ChainJob,
    HealingLimits,
    config_sha,
    parse_comment,
    require_configuration,
)
from r2v.slurm.chain.experience import sized
from r2v.slurm.chain.snapshot import pin
from r2v.slurm.client import client
from r2v.slurm.client.command import require
from r2v.slurm.estimate import estimate_lines, estimates
from r2v.slurm.healing.gpu_hours import require_room
from r2v.slurm.healing.heal import ended_well
from r2v.slurm.healing.reconcile import look_after_waiters, reconcile
from r2v.slurm.healing.shared_stages import needed_by_others, owners, share, sharing, waiters
from r2v.slurm.preview import preview
from r2v.slurm.site import requests
from r2v.slurm.site.headers import Resources
from r2v.slurm.submit_missing import changes, find, require_acceptable, submit_missing, table
from r2v.storage import artifact as artifacts
from r2v.storage.files import write_text
from r2v.storage.model_identity import pinned_commit
from r2v.storage.paths import CONFIGS, SCRIPTS

BENCHMARK_GROUPS = {"all": ("webarena", "swebench")}
"""Names that stand for several benchmarks."""


def submit(
    *,
    benchmark: str | None = None,
    config: str | None = None,
    overrides: Sequence[str] = (),
    start: str | None = None,
    without: Sequence[str] = (),
    dry_run: bool = False,
    here: bool = False,
    max_attempts: int | None = None,
    max_gpu_hours: float | None = None,
    live: bool = False,
    allow_env: Sequence[str] = (),
    take_over: bool = False,
    root: Path = Path(),
) -> int:
    """Submit a benchmark's pipeline (or print it, or run it here); returns an exit code. `allow_env`: variables that
    its jobs may send as keys (`r2v.llm.providers.keys`), in addition to those recorded by this configuration's chain.

    Everything is checked before the first job is submitted. Raises UsageError, InputError, LeaseConflict, NoSlurm;
    EnvironmentFault if Slurm stops accepting jobs halfway: submitted jobs stay.
    """
    limits = _limits(HealingLimits(), max_attempts, max_gpu_hours)
    paths = _paths(benchmark, config, root)
    configs = [configured(path, overrides) for path in paths]
    if here:
        for loaded in configs:
            done = run_here(loaded, start=start, without=without, root=root)
            report_of(loaded, [stage.job for stage in done], root)
        return 0
    if not dry_run:  # a preview needs no network, so it pins no commit
        for line in filter(None, map(untrained_line, configs)):
            logger.info("policy not trained: reason=%s", line)
        configs = [_at_commit(loaded) for loaded in configs]
    named = [_config_words(path, overrides) for path in paths]
    plans = [_planned(*pair, start, without, root) for pair in zip(configs, named, strict=True)]
    if dry_run:
        for words, loaded, steps in zip(named, configs, plans, strict=True):
            _print_plan(root, loaded, steps, [*words, *keys.allowed_words(allow_env)])
        return 0
    refused = list[R2VError]()
    for loaded, steps in zip(configs, plans, strict=True):
        existing = chains.find(root, places_of(loaded, root).name)
        recorded = existing.allow_env if existing is not None and existing.config_sha == _sha(loaded) else ()
        with keys.also_allowed([*allow_env, *recorded]):
            try:
                require_worlds(loaded, [step.job for step in steps])
                require_cap(loaded, [step.job for step in steps], root)
            except R2VError as error:
                refused.append(error)
    if len(refused) > 1:
        raise UsageError("; and ".join(f"{path}: {error}" for path, error in zip(paths, refused, strict=True)))
    if refused:
        raise refused[0]
    require()
    for loaded, steps in zip(configs, plans, strict=True):
        _submit_chain(root, loaded, steps, limits, without=without, live=live, allow_env=allow_env, take_over=take_over)
    return 0


def resume(
    *,
    name: str,
    start: str | None = None,
    overrides: Sequence[str] = (),
    max_attempts: int | None = None,
    max_gpu_hours: float | None = None,
    live: bool = False,
    allow_env: Sequence[str] = (),
    root: Path = Path(),
) -> int:
    """Resume a stopped chain from a job on, with a changed configuration; returns an exit code. Variables recorded by
    the chain stay allowed, in addition to `allow_env`.

    Pending jobs keep their ids unless their headers were edited since. Raises UsageError for a key that may not be
    sent, LeaseConflict if a job affected by the change is running.
    """
    require()
    with chains.lock(root, name, wait=30.0):  # a failing job or its sentinel may hold it
        before = chains.read(root, name)
        require_configuration(root, before)
        path = chains.folder(root, name) / "config.yaml"
        old, new = load(path), load(path, overrides)
        before_change, after_change = flat(asdict(old)), flat(asdict(new))
        for key in sorted(before_change.keys() | after_change.keys()):
            if before_change.get(key) != after_change.get(key):
                print(f"{key}: {before_change.get(key)} -> {after_change.get(key)}")
        absent = [item.name for item in JOBS if item.name not in before.jobs]  # the chain was submitted without them
        steps = _planned(new, _config_words(path, overrides), start, absent, root)
        rows = client.queue(name, root)
        for step in steps:
            row = find(rows, before, step.job.name)
            if row is not None and row.state != "PENDING" and step.job.name in touched(old, new):
                raise LeaseConflict(
                    f"{step.job.name} runs with the configuration as it was (job {row.id}); wait for it, or "
                    f"`r2v cancel {name}` first"
                )
        chain = replace(
            before,
            config_sha=_sha(new),
            cancelled=None,
            limits=_limits(before.limits, max_attempts, max_gpu_hours),
            allow_env=_names(before.allow_env, allow_env),
        )
        with keys.also_allowed(chain.allow_env):
            require_sendable_keys(new, [step.job for step in steps])
        require_cap(new, [step.job for step in steps], root)
        _submit_plan(root, new, chain, steps, "resume", live=live)
    look_after_waiters(root, name)
    return 0


def cancel(*, name: str, root: Path = Path()) -> int:
    """Cancel a chain's jobs, sentinels and helpers too, but not stages that others wait for; returns an exit code."""
    with sharing(root), chains.lock(root, name, wait=60.0):  # a reconciliation may hold it for many Slurm calls
        chain = replace(chains.read(root, name), cancelled=chains.now())
        chains.write(root, chain)
        needed = needed_by_others(root, chain)
        marks = {row.id: parse_comment(row.comment) for row in client.queue(name, root)}
        # A sentinel stays while other chains wait for stages of this one: it still has to heal them.
        ids = [id_ for id_, mark in marks.items() if not (needed and mark and mark.job in needed | {WHOLE})]
        helpers = client.queue(name, root, mark=client.HELPERS_MARK)
        client.cancel([*ids, *(row.id for row in helpers if row.comment.rpartition("/")[2] not in needed)])
    print(f"{name}: {len(ids)} jobs cancelled" + (f" ({' '.join(ids)})" if ids else "; none was in the queue"))
    if needed:
        others = ", ".join(other.name for other in waiters(root, name))
        print(
            f"{name}: {', '.join(job for job in chain.jobs if job in needed)} go on: {others} waits for what they make"
        )
    for owner in owners(chain):
        if chains.read(root, owner).cancelled:
            reconcile(owner, root=root, wait=10.0)
    return 0


def _config_words(path: Path, overrides: Sequence[str]) -> list[str]:
    return ["--config", str(path), *(["--overrides", *overrides] if overrides else [])]


def _planned(
    config: Config, words: Sequence[str], start: str | None, without: Sequence[str], root: Path
) -> list[PlannedJob]:
    """Return the plan of a configuration. `words` are its arguments in the command that a MissingInput suggests."""
    try:
        return plan(config, start=start, without=without, root=root)
    except MissingInput as error:
        raise error.configured(words) from None


def _at_commit(config: Config) -> Config:
    """Return the configuration with its hub model pinned to a commit, so that all jobs read the same files."""
    policy = config.policy
    commit = None if policy.is_api else pinned_commit(policy.model_name, policy.revision)
    return config if commit is None else replace(config, policy=replace(policy, revision=commit))


def _submit_chain(
    root: Path,
    config: Config,
    steps: Sequence[PlannedJob],
    limits: HealingLimits,
    *,
    without: Sequence[str],
    live: bool,
    allow_env: Sequence[str],
    take_over: bool,
) -> None:
    name, sha = places_of(config, root).name, _sha(config)
    # A job that has just started may hold the lock while it reconciles the chain.
    with chains.lock(root, name, wait=30.0, take_over=take_over):
        marks = {row.id: parse_comment(row.comment) for row in client.queue(name, root)}
        others = [id_ for id_, mark in marks.items() if mark is not None and mark.sha != sha]
        if others:
            raise LeaseConflict(
                f"{name}: jobs {' '.join(others)} of another configuration are in the queue; end them: r2v "
                f"cancel {name}, or go on with them: r2v resume {name} --overrides KEY=VALUE"
            )
        chain = replace(
            _new_chain(root, config), created_at=chains.now(), limits=limits, allow_env=_names((), allow_env)
        )
        existing = chains.find(root, name)
        if existing is not None and existing.config_sha == sha:
            alive = {mark.job for mark in marks.values() if mark is not None}
            left_out = {job(word).name for word in without} & existing.jobs.keys() - alive - _done(root, existing)
            jobs = {name: entry for name, entry in existing.jobs.items() if name not in left_out}
            earlier = {**existing.earlier, **{name: existing.history[name] for name in left_out}}
            names = _names(existing.allow_env, allow_env)
            chain = replace(chain, created_at=existing.created_at, jobs=jobs, earlier=earlier, allow_env=names)
        elif existing is not None:
            chain = replace(chain, earlier=existing.history)
        _submit_plan(root, config, chain, steps, None, live=live, queued=existing if marks else None)
    look_after_waiters(root, name)


def _done(root: Path, chain: Chain) -> set[str]:
    latest = {name: entry.latest for name, entry in chain.jobs.items()}
    return {name for name, attempt in latest.items() if attempt is not None and ended_well(root, chain, attempt)}


def _submit_plan(
    root: Path,
    config: Config,
    chain: Chain,
    steps: Sequence[PlannedJob],
    reason: str | None,
    *,
    live: bool,
    queued: Chain | None = None,
) -> None:
    """Write the chain, then submit the jobs that are not up to date. The caller holds the chain's lock. `queued` is
    the existing chain if it has jobs in the queue."""
    chain = _with_steps(root, config, chain, steps)
    todo = [step.job.name for step in steps if step.state != "up to date"]
    resources = _resources(root, config, steps)
    require_acceptable(todo, chain, resources)
    require_room(root, chain, todo, resources)
    chain = pin(root, chain, config, live=live, queued=queued) if todo else chain
    for step in steps:
        if step.artifact is not None and step.job.place is not None:
            # An earlier run may have finished it without publishing: the jobs read published inputs.
            artifacts.publish(place_of(config, step.job.name, root), step.artifact.folder)
    # The configuration first: jobs check it against the hash in chain.json, and wait for that to follow.
    write_text(chains.folder(root, chain.name) / "config.yaml", to_yaml(config))
    chains.write(root, chain)
    due, submitted = list[str](), list[str]()
    with sharing(root):
        if todo:
            chain, due = share(root, chain, todo, resources)
            chain, submitted = submit_missing(root, chain, due, resources, reason)
    _print_outcome(chain, steps, due, submitted, resources)
    for line in warnings(estimates(config, {name: resources[name] for name in submitted}, root)):
        logger.warning("plan warning: reason=%s", line)


def _with_steps(root: Path, config: Config, chain: Chain, steps: Sequence[PlannedJob]) -> Chain:
    """Return the chain with the jobs of a plan, in table order, keeping earlier attempts. A published input of the plan
    counts as up to date, even if the chain's own attempt at it failed."""
    planned = {step.job.name: step for step in steps}
    there = [as_configured(config, item) for item in JOBS if item.name in planned or item.name in chain.jobs]
    given = {name for step in steps for name in step.job.inputs} - planned.keys()
    waits, jobs = waiting(there), dict[str, ChainJob]()
    for item in there:
        step, existing = planned.get(item.name), chain.jobs.get(item.name)
        if step is None and existing is not None:
            done = "up to date" if item.name in given else existing.skipped
            jobs[item.name] = replace(existing, needs=waits[item.name], skipped=done)
        elif step is not None:
            jobs[item.name] = ChainJob(
                needs=waits[item.name],
                script=item.command.script,
                attempts=existing.attempts if existing else (),
                command=item.argv,
                recipe=step.recipe,
                skipped="up to date" if step.state == "up to date" else None,
            )
    return replace(chain, jobs=jobs, sentinel=requests.sentinel(root))


def _resources(root: Path, config: Config, steps: Sequence[PlannedJob]) -> dict[str, Resources]:
    chain, requests_by_job = places_of(config, root).name, dict[str, Resources]()
    for name, row in ((step.job.name, step.job) for step in steps):
        own = requests.of_job(root, row.command.script, name, config)
        requests_by_job[name] = replace(own, directives=sized(root, chain, name, own.directives))
        for change in changes(own.directives, requests_by_job[name].directives):
            logger.info("size learned by healing applied: job=%s change=%s", name, change)
    return requests_by_job


def _names(*groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))


def _paths(benchmark: str | None, config: str | None, root: Path) -> list[Path]:
    if config is not None:
        return [Path(config)]
    if benchmark is None:
        raise UsageError("run_all of what? Name a benchmark (webarena, swebench, desk, all) or a --config")
    names = BENCHMARK_GROUPS.get(benchmark, (benchmark,))
    benchmarks = {path.parent.name for path in (root / CONFIGS).glob("*/noisy.yaml")}
    if not set(names) <= benchmarks:
        if not benchmarks:
            raise UsageError(
                f"no configs/*/noisy.yaml in {root.absolute()}; run this in a project that `r2v init DIR` made, or in "
                "R2V's checkout, or name --config FILE"
            )
        absent = ", ".join(f"configs/{name}/noisy.yaml" for name in names if name not in benchmarks)
        group = benchmark in BENCHMARK_GROUPS
        hint = f"{absent} is missing" if group else nearest(benchmark, benchmarks | set(BENCHMARK_GROUPS))
        raise UsageError(f"no benchmark {benchmark}; {hint}")
    return [root / CONFIGS / name / "noisy.yaml" for name in names]


def _limits(before: HealingLimits, attempts: int | None, gpu_hours: float | None) -> HealingLimits:
    if attempts is not None and attempts < 1:
        raise UsageError(f"--max-attempts {attempts}: at least 1, which means no healing")
    if gpu_hours is not None and gpu_hours <= 0:
        raise UsageError(f"--max-gpu-hours {gpu_hours:g}: must be above 0")
    return HealingLimits(
        attempts=before.attempts if attempts is None else attempts,
        gpu_hours=before.gpu_hours if gpu_hours is None else gpu_hours,
    )


def _sha(config: Config) -> str:
    return config_sha(to_yaml(config))


def _new_chain(root: Path, config: Config) -> Chain:
    return Chain(
        name=places_of(config, root).name,
        benchmark=config.env.benchmark,
        condition=config.data.condition,
        config_sha=_sha(config),
        user=chains.account(),
        checkout=chains.checkout_id(root),
    )


def _print_plan(root: Path, config: Config, steps: Sequence[PlannedJob], words: Sequence[str]) -> None:
    chain = _with_steps(root, config, _new_chain(root, config), steps)
    due = [step.job.name for step in steps if step.state != "up to date"]
    resources = _resources(root, config, steps)
    why = {step.job.name: f"{step.state}: {step.why}" for step in steps}
    lines, refused = preview(root, chain, due, resources, why, words)
    print("\n".join([f"{chain.name} (nothing is submitted)", *lines, ""]))
    print("\n".join(estimate_lines(config, {name: resources[name] for name in due}, root)))
    if refused:
        raise UsageError(f"sbatch would refuse {', '.join(refused)}; mend the headers in {SCRIPTS}, see `r2v doctor`")


def _print_outcome(
    chain: Chain,
    steps: Sequence[PlannedJob],
    due: Sequence[str],
    submitted: Sequence[str],
    resources: Mapping[str, Resources],
) -> None:
    for step in steps:
        if step.spoiled:
            logger.warning("stage stale: stage=%s reason=%s", step.job.name, step.why)
    shared_jobs = [name for name, entry in chain.jobs.items() if entry.is_shared]
    skipped = sum(step.state == "up to date" for step in steps)
    print(table(chain, due, submitted, resources))
    print(
        f"{chain.name}: {len(submitted)} submitted, {len(due) - len(submitted)} in the queue before, "
        f"{skipped} skipped{' (inputs unchanged)' if skipped else ''}"
        + (f", {len(shared_jobs)} made by other chains" if shared_jobs else "")
    )
    if due or shared_jobs:
        print(f"r2v status {chain.name}   r2v cancel {chain.name}")
