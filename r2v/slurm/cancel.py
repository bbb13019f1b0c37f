"""`r2v cancel`: every job of a chain ends, but for what other chains wait for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from r2v.slurm import chain as chains
from r2v.slurm import client
from r2v.slurm.chain import WHOLE, parse_comment
from r2v.slurm.reconcile import reconcile
from r2v.slurm.shared_stages import needed_by_others, owners, sharing, waiters


def cancel(*, name: str | None = None, root: Path = Path()) -> int:
    """End every job of a chain, sentinels and helpers included, so that nothing heals; returns an exit code. What other
    chains wait for goes on."""
    name = chains.only(root, name)
    with sharing(root), chains.lock(root, name, wait=60.0):
        chain = replace(chains.read(root, name), cancelled=chains.now())
        chains.write(root, chain)
        kept = needed_by_others(root, chain)
        marks = {row.id: parse_comment(row.comment) for row in client.queue(name, root)}
        ids = [id_ for id_, mark in marks.items() if not (kept and mark and mark.job in kept | {WHOLE})]
        helpers = client.queue(name, root, mark=client.HELPERS_MARK)
        client.cancel([*ids, *(row.id for row in helpers if row.comment.rpartition("/")[2] not in kept)])
    print(f"{name}: {len(ids)} jobs cancelled" + (f" ({' '.join(ids)})" if ids else "; none was in the queue"))
    if kept:
        others = ", ".join(other.name for other in waiters(root, name))
        print(f"{name}: {', '.join(job for job in chain.jobs if job in kept)} go on: {others} waits for what they make")
    for owner in owners(chain):
        if chains.read(root, owner).cancelled:
            reconcile(owner, root=root, wait=10.0)
    return 0
