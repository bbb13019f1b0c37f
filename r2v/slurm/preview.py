"""The preview of a chain: the sbatch lines that `--dry-run` prints, which can be pasted into a shell.

    bc=$(sbatch --parsable --job-name=bc_desk_noisy ... --dependency=afterok:$perturb --wrap='bash scripts/slurm/...')

Options and comments are those of `run_all`, so a later `run_all` adopts pasted jobs. Pasted lines make no chain and no
code snapshot: until that `run_all`, a pasted sentinel has nothing to heal.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.slurm.chain.chain import WHOLE, Chain
from r2v.slurm.client import client
from r2v.slurm.client.command import NoSlurm, present
from r2v.slurm.site.headers import Resources
from r2v.slurm.submit_missing import check_request
from r2v.storage.paths import LOGS, SCRIPTS


def preview(
    root: Path,
    chain: Chain,
    due: Sequence[str],
    resources: Mapping[str, Resources],
    why: Mapping[str, str],
    words: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return the lines of `--dry-run` and the jobs that Slurm would reject. `words` are the configuration's arguments
    of a job's command. Nothing is submitted."""
    lines, refused, hours, no_answer = [], list[str](), 0.0, _unreachable()
    if due and not (root / LOGS).is_dir():
        lines.append(f"  mkdir -p {LOGS}")
    for name, job in chain.jobs.items():
        if name not in due:
            lines.append(f"{name:16} skipped ({why.get(name, 'not asked for')})")
            continue
        request = resources[name]
        hours += request.gpu_hours
        lines.append(f"{name:16} {why[name]}")
        waits = [need for need in job.needs if need in due]
        lines.append(f"  {_stage_line(root, chain, name, request, waits, words)}")
        if no_answer is None:
            answer = check_request(request)
            refused += [] if answer.ok else [name]
            line = re.sub(r"^Job \d+ ", "", answer.line)  # --test-only numbers a job it never creates
            lines.append(f"  # would be {'accepted' if answer.ok else 'REJECTED'}: {line}")
    if due:
        lines.append("sentinel         runs if one of them fails")
        lines.append(f"  {_sentinel_line(root, chain, due)}")
    lines.append(
        f"{len(due)} jobs, {len(chain.jobs) - len(due)} skipped; at most {hours:.0f} GPU-hours"
        + ("" if no_answer is None else f"; {no_answer}, so no header was tested")
    )
    return lines, refused


def _stage_line(
    root: Path, chain: Chain, name: str, request: Resources, waits: Sequence[str], words: Sequence[str]
) -> str:
    from r2v.slurm.client.submit import stage_directives

    job = chain.jobs[name]
    directives = stage_directives(root, chain, name, request.directives, [f"${need}" for need in waits])
    args = [f"--job-name={name}_{chain.name}", *Resources(directives=directives).sbatch_args()]
    command = ["bash", str(SCRIPTS / job.script), *job.command[1:], *words]
    return f"{name}=$(sbatch --parsable {_typed(args)} --wrap={shlex.quote(f'exec {shlex.join(command)}')})"


def _sentinel_line(root: Path, chain: Chain, due: Sequence[str]) -> str:
    from r2v.slurm.client.submit import environment_lines, sentinel_args

    args = sentinel_args(root, chain, [f"${name}" for name in due])
    script = "; ".join([*environment_lines(root), f"exec python -m r2v heal {shlex.quote(chain.name)} {WHOLE}"])
    return f"sbatch {_typed(args)} --wrap={shlex.quote(shlex.join(['exec', 'bash', '-c', script]))}"


def _typed(args: Sequence[str]) -> str:
    """Return arguments quoted for the shell; ids of other jobs are its variables, so they keep their `$`."""
    return " ".join(f'"{word}"' if "$" in word else shlex.quote(word) for word in args)


def _unreachable() -> str | None:
    """Return the reason that Slurm cannot be queried here; None if it can."""
    if not present():
        return "Slurm is not on this machine"
    try:
        client.partitions()
    except NoSlurm:
        return "no Slurm controller answers here"
    return None
