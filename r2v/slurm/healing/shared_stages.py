"""Shared stages: what several chains of a checkout would make alike is one Slurm job, for which all of them wait.

    with sharing(root):                                    # nobody else decides meanwhile
        chain, own = share(root, chain, wanted, resources) # what another chain makes already is not submitted here

Two jobs are alike where their recipes are (`r2v.pipeline.plan`). The chain that has the job is its owner: it books its
hours, and heals it, also where a waiter's command or job looks first. What waits here waits by `afterok` for the
owner's job, and holds no GPU. Once that is done its artifact is published here too. An owner whose job is no longer
alike, or gone, is forgotten, and the job is submitted here.
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
    """The exclusive right to decide which chain makes what, for the length of the block."""
    with lease(root / CHAINS / "sharing.lease", wait=120.0):
        yield


def share(
    root: Path, chain: Chain, wanted: Sequence[str], resources: Mapping[str, Resources]
) -> tuple[Chain, list[str]]:
    """The chain with those of the wanted jobs handed over that another chain has in the queue or is about to submit,
    or has made since this one's were planned, and the rest of them. The caller holds `sharing` and the chain's lock,
    and has written the chain and its configuration."""
    others = [other for other in _readable(root) if other.name != chain.name]
    if not any(entry.recipe for other in others for entry in other.jobs.values()):
        return chain, list(wanted)
    alive = {row.id for row in client.queue()}
    own = []
    for name in wanted:
        entry = chain.jobs[name]
        mine = entry.latest is not None and entry.latest.id in alive
        owner = None if mine else next((one.name for one in others if _makes(root, one, name, entry, alive)), None)
        if owner is None and not mine and (maker := _just_made(root, others, chain, name)) is not None:
            chain = chain.with_job(name, skipped=f"made by the chain {maker}")
            continue
        if owner is None:
            own.append(name)
            continue
        logger.info("%s: %s is made by the chain %s, and waited for", chain.name, name, owner)
        asked = dict(resources[name].directives)
        chain = chain.with_job(name, owner=owner, asked=asked, planned=None, skipped=None)
    return chain, own


def owners(chain: Chain) -> list[str]:
    """The chains that make something for this one, and have not yet."""
    return sorted({entry.owner for entry in chain.jobs.values() if entry.is_shared})


def waiters(root: Path, name: str) -> list[Chain]:
    """The chains that wait for a job of this one."""
    return [one for one in _readable(root) if one.name != name and not one.cancelled and name in owners(one)]


def needed_by_others(root: Path, chain: Chain) -> set[str]:
    """The jobs of a chain that others wait for, with all that those need."""
    needed = {job for other in waiters(root, chain.name) for job in _waited_for(other, chain.name)} & chain.jobs.keys()
    todo = list(needed)
    while todo:
        new = set(chain.jobs[todo.pop()].needs) & chain.jobs.keys() - needed
        needed |= new
        todo += new
    return needed


def settle(now: Comparison) -> None:
    """Take what the owners have made for this chain, and plan what they do not make."""
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
            logger.info("%s: %s is not made by the chain %s; it is made here", now.chain.name, job, entry.owner)
            planned = Attempt(id="", resources=entry.asked, reason="first")
            now.write(now.chain.with_job(job, owner="", planned=planned))


def publish_all(root: Path, name: str) -> None:
    """Publish what owners have made for a chain: before one of its jobs reads it. What is missing the job will say."""
    for job, entry in chains.read(root, name).jobs.items() if name in chains.names(root) else ():
        if entry.is_shared:
            with suppress(R2VError):
                publish_shared(root, name, job)


def publish_for_waiters(root: Path, name: str, job: str) -> None:
    """Publish what a job of this chain has just made, for every chain that waits for it."""
    for other in waiters(root, name):
        if job in _waited_for(other, name):
            with suppress(R2VError):
                publish_shared(root, other.name, job)


def publish_shared(root: Path, name: str, job: str) -> bool:
    """Publish, for a chain, the finished artifact that its configuration and its published inputs name; False where
    there is none."""
    from r2v.config import load
    from r2v.pipeline import inputs, jobs
    from r2v.pipeline.graph import as_configured
    from r2v.storage import artifact as artifacts

    config = load(chains.folder(root, name) / "config.yaml")
    row = as_configured(config, jobs.job(job))
    try:
        made = {need: inputs.published(config, need, root) for need in row.inputs}
        found = inputs.made_already(config, row, inputs.fingerprint_of(config, row, made), root)
    except InputError as error:
        logger.warning("%s: %s: %s", name, job, error)
        return False
    if found is not None and row.place is not None:
        artifacts.publish(inputs.place_of(config, job, root), found.folder)
    return found is not None


def _makes(root: Path, other: Chain, job: str, entry: ChainJob, alive: set[str]) -> bool:
    """True if another chain has this job in the queue, or is about to have it."""
    theirs = other.jobs.get(job)
    if theirs is None or not entry.recipe or theirs.recipe != entry.recipe or theirs.owner or theirs.skipped:
        return False
    if other.cancelled and job not in needed_by_others(root, other):
        return False
    return theirs.planned is not None or (theirs.latest is not None and theirs.latest.id in alive)


def _just_made(root: Path, others: Sequence[Chain], chain: Chain, job: str) -> str | None:
    """The chain whose job made this one's while nobody looked: when this chain was planned it was not there yet, and
    when the queue was read the job had left it. What was made is published here."""
    entry = chain.jobs[job]
    alike = [one for one in others if entry.recipe and job in one.jobs and one.jobs[job].recipe == entry.recipe]
    ended = [one.name for one in alike if one.jobs[job].latest is not None]
    if not ended or not all(chain.jobs[need].skipped for need in entry.needs if need in chain.jobs):
        return None
    with suppress(R2VError):
        return ended[0] if publish_shared(root, chain.name, job) else None
    return None


def _waited_for(chain: Chain, owner: str) -> list[str]:
    return [job for job, entry in chain.jobs.items() if entry.is_shared and entry.owner == owner]


def _readable(root: Path) -> list[Chain]:
    """The chains of a checkout; one that cannot be read shares nothing."""
    found = []
    for name in chains.names(root):
        with suppress(InputError):
            found.append(chains.read(root, name))
    return found
