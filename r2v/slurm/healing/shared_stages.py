"""Shared stages: a stage with the same recipe in several chains of a checkout is one Slurm job that all of them await.

    with sharing(root):                                    # one chain at a time decides
        chain, own = share(root, chain, due, resources)    # jobs that another chain makes are not submitted here

Jobs are the same if their recipes are (`r2v.pipeline.plan`). The chain that has the job is its owner: it is charged
for the hours and heals it, though a waiter's command or job may be the first to notice. Dependent jobs of a waiter
depend on the owner's job by `afterok` and hold no GPU. Once it is done, its artifact is published for the waiter too.
If the owner's job disappears or its recipe changes, the job is submitted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from r2v.errors import InputError, R2VError
from r2v.log import logger
from r2v.slurm.chain import chain as chains
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob
from r2v.slurm.client import client
from r2v.slurm.healing.comparison import Comparison
from r2v.slurm.site.headers import Resources
from r2v.storage.lease import lease
from r2v.storage.paths import CHAINS


@contextmanager
def sharing(root: Path) -> Iterator[None]:
    """Hold the exclusive right to assign stages to chains within the block."""
    with lease(root / CHAINS / "sharing.lease", wait=120.0):  # the holder may submit a whole chain meanwhile
        yield


def share(root: Path, chain: Chain, due: Sequence[str], resources: Mapping[str, Resources]) -> tuple[Chain, list[str]]:
    """Hand over the `due` jobs that another chain has queued or planned, or has finished since this one's plan; returns
    the chain and its remaining jobs. The caller holds `sharing` and the chain's lock, and has written the chain and its
    configuration."""
    others = [other for other in _readable(root) if other.name != chain.name]
    if not any(entry.recipe for other in others for entry in other.jobs.values()):
        return chain, list(due)
    alive = {row.id for row in client.queue()}
    own = []
    for name in due:
        entry = chain.jobs[name]
        mine = entry.latest is not None and entry.latest.id in alive
        makers = (other.name for other in others if _owns(root, other, name, entry, alive))
        owner = None if mine else next(makers, None)
        if owner is None and not mine and (maker := _just_made(root, others, chain, name)) is not None:
            chain = chain.with_job(name, skipped=f"made by the chain {maker}")
            continue
        if owner is None:
            own.append(name)
            continue
        logger.info("stage shared: chain=%s stage=%s owner=%s", chain.name, name, owner)
        directives = dict(resources[name].directives)
        chain = chain.with_job(name, owner=owner, asked=directives, planned=None, skipped=None)
    return chain, own


def owners(chain: Chain) -> list[str]:
    """Return the chains that own unfinished stages of this one."""
    return sorted({entry.owner for entry in chain.jobs.values() if entry.is_shared})


def waiters(root: Path, name: str) -> list[Chain]:
    """Return the chains that wait for a job of this one."""
    others = (chain for chain in _readable(root) if chain.name != name)
    return [chain for chain in others if not chain.cancelled and name in owners(chain)]


def needed_by_others(root: Path, chain: Chain) -> set[str]:
    """Return the jobs of a chain that others wait for, with everything that those depend on."""
    needed = {job for other in waiters(root, chain.name) for job in _waited_for(other, chain.name)} & chain.jobs.keys()
    todo = list(needed)
    while todo:
        new = set(chain.jobs[todo.pop()].needs) & chain.jobs.keys() - needed
        needed |= new
        todo += new
    return needed


def settle(now: Comparison) -> None:
    """Publish artifacts that owners have finished for this chain, and plan the stages that they no longer make."""
    for job, entry in now.chain.jobs.items():
        if not entry.is_shared or now.chain.cancelled:
            continue
        standing = now.standing(job)
        try:
            published = standing == "done" and publish_shared(now.root, now.chain.name, job)
        except R2VError as error:
            now.undone.append(f"{job}, made by the chain {entry.owner}, was not published here: {error}")
            continue
        if published:
            now.write(now.chain.with_job(job, skipped=f"made by the chain {entry.owner}"))
        elif standing in ("done", "absent"):
            logger.info("owner lost, submitting here: chain=%s stage=%s owner=%s", now.chain.name, job, entry.owner)
            planned = Attempt(id="", resources=entry.asked, reason="first")
            now.write(now.chain.with_job(job, owner="", planned=planned))


def publish_all(root: Path, name: str) -> None:
    """Publish finished artifacts of owners for a chain, before one of its jobs reads them."""
    for job, entry in chains.read(root, name).jobs.items() if name in chains.names(root) else ():
        if entry.is_shared:
            with suppress(R2VError):  # the job reports a missing input itself
                publish_shared(root, name, job)


def publish_for_waiters(root: Path, name: str, job: str) -> None:
    """Publish the artifact of a finished job of this chain for every chain that waits for it."""
    for other in waiters(root, name):
        if job in _waited_for(other, name):
            with suppress(R2VError):  # the waiter's own reconciliation tries again
                publish_shared(root, other.name, job)


def publish_shared(root: Path, name: str, job: str) -> bool:
    """Publish for a chain the finished artifact of its configuration and published inputs; False if there is none."""
    from r2v.config import load
    from r2v.pipeline import inputs, jobs
    from r2v.pipeline.graph import as_configured
    from r2v.storage import artifact as artifacts

    config = load(chains.folder(root, name) / "config.yaml")
    row = as_configured(config, jobs.job(job))
    try:
        published_inputs = {need: inputs.published(config, need, root) for need in row.inputs}
        artifact = inputs.made_already(config, row, inputs.fingerprint_of(config, row, published_inputs), root)
    except InputError as error:
        logger.warning("artifact not published: chain=%s stage=%s error=%s", name, job, error)
        return False
    if artifact is not None and row.place is not None:
        artifacts.publish(inputs.place_of(config, job, root), artifact.folder)
    return artifact is not None


def _owns(root: Path, other: Chain, job: str, entry: ChainJob, alive: set[str]) -> bool:
    """True if another chain has this job queued or planned."""
    theirs = other.jobs.get(job)
    if theirs is None or not entry.recipe or theirs.recipe != entry.recipe or theirs.owner or theirs.skipped:
        return False
    if other.cancelled and job not in needed_by_others(root, other):
        return False
    return theirs.planned is not None or (theirs.latest is not None and theirs.latest.id in alive)


def _just_made(root: Path, others: Sequence[Chain], chain: Chain, job: str) -> str | None:
    """Return the chain that finished this job after this chain's plan was made and before the queue was read, and
    publish its artifact here; None for none."""
    entry = chain.jobs[job]
    alike = [other for other in others if entry.recipe and job in other.jobs and other.jobs[job].recipe == entry.recipe]
    ended = [other.name for other in alike if other.jobs[job].latest is not None]
    if not ended or not all(chain.jobs[need].skipped for need in entry.needs if need in chain.jobs):
        return None
    with suppress(R2VError):  # without the artifact the job is submitted here
        return ended[0] if publish_shared(root, chain.name, job) else None
    return None


def _waited_for(chain: Chain, owner: str) -> list[str]:
    return [job for job, entry in chain.jobs.items() if entry.is_shared and entry.owner == owner]


def _readable(root: Path) -> list[Chain]:
    """Return the readable chains of a checkout; a damaged one shares nothing."""
    readable = []
    for name in chains.names(root):
        with suppress(InputError):
            readable.append(chains.read(root, name))
    return readable
