"""The chain: the Slurm jobs of one pipeline and every attempt at them, kept in a file for any later process.

    outputs/.chains/desk_noisy/chain.json        what was submitted, replaced whole under the lease chain.lease
                               config.yaml       what every job of the chain reads
                               jobs/<job id>/    written by that Slurm job alone: start, events, error, exit

`chain.json` holds a hash of itself and one of the configuration. It is written before the first sbatch and after each
one. What a submitter that was killed had no time to write is found in the queue: a job's comment names its chain, its
stage and the configuration.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from r2v.data.schema import from_dict
from r2v.errors import InputError, UsageError
from r2v.storage.artifact_manifest import Damaged
from r2v.storage.files import write_json
from r2v.storage.integrity import hashed, read_hashed
from r2v.storage.lease import lease
from r2v.storage.paths import CHAINS

FORMAT = 1
_REMEDY = "run the same `r2v run_all` again: running jobs are found in the queue"
ASKED_FOR = ("first", "rerun", "resume")
"""Reasons of attempts that a person asked for; healing counts from the last of them."""
OF = "--of"
"""The option that names chain, job and attempt, CHAIN/JOB.2, of a runner's command line that stands for itself."""
WHOLE = "all"
"""In place of a job in a comment: a sentinel that watches all jobs of its chain."""


@dataclass(frozen=True, kw_only=True)
class AttemptFailure:
    """The failure of an attempt, and what healing did about it."""

    kind: str
    line: str
    action: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One submission of a job."""

    id: str
    sentinel: str | None = None
    """The Slurm job that watches it, and all others of its chain that are in the queue."""
    resources: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    reason: str = "first"
    """first, rerun, resume; or the kind of failure that it answers; or dependency, for a waiting job that the
    site had killed with its parent."""
    counted: bool = True
    """True if it uses up one of the attempts that the limits allow."""
    submitted_at: str = ""
    failure: AttemptFailure | None = None
    config_sha: str = ""


@dataclass(frozen=True, kw_only=True)
class ChainJob:
    """One job of a chain and its attempts, oldest first."""

    needs: tuple[str, ...]
    command: tuple[str, ...]
    script: str
    skipped: str | None = None
    attempts: tuple[Attempt, ...] = ()
    planned: Attempt | None = None
    """An attempt that is to be submitted, or was, and nobody could write its id down yet."""
    recipe: str = ""
    """The recipe of its artifact, by settings alone."""
    owner: str = ""
    """The chain that makes the same, and is waited for (`r2v.slurm.healing.shared_stages`); "" for this one."""
    asked: dict[str, str] = field(default_factory=dict)
    """The resources that it would ask for, should this chain have to make it after all."""

    @property
    def latest(self) -> Attempt | None:
        """The attempt that counts."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_shared(self) -> bool:
        """True while another chain makes it, and what that makes is not published here."""
        return bool(self.owner) and not self.skipped

    @property
    def next_number(self) -> int:
        """The number of the attempt that is planned, or would be next; from 1 on."""
        return len(self.attempts) + 1

    @property
    def since_asked(self) -> tuple[Attempt, ...]:
        """Those from the last one on that somebody asked for."""
        return self.attempts[max((i for i, one in enumerate(self.attempts) if one.reason in ASKED_FOR), default=0) :]


@dataclass(frozen=True, kw_only=True)
class HealingLimits:
    """The limits of healing: counted attempts of each job, GPU-hours of the whole chain (None: no cap)."""

    attempts: int = 3
    gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class Chain:
    """All that was submitted for one pipeline: of R2V's own `code`, in a `snapshot` (None: what the checkout holds)."""

    name: str
    benchmark: str
    condition: str
    config_sha: str
    commit: str | None = None
    dirty: bool = False
    snapshot: str | None = None
    code: str | None = None
    created_at: str = ""
    user: str = ""
    """The account that its jobs are submitted with; "" where none is recorded."""
    checkout: str = ""
    """A hash of the checkout's path, which tells it from another one of the same user."""
    cancelled: str | None = None
    limits: HealingLimits = field(default_factory=HealingLimits)
    allow_env: tuple[str, ...] = ()
    """Environment variables that its jobs may send as keys, by name: --allow-env of whoever submitted it."""
    sentinel: dict[str, str] = field(default_factory=dict)
    """The resources of a sentinel."""
    jobs: dict[str, ChainJob] = field(default_factory=dict)
    earlier: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)
    """By job: the attempts that were made under other configurations."""

    @property
    def history(self) -> dict[str, tuple[Attempt, ...]]:
        """By job: every attempt that there was, oldest first."""
        now = {name: job.attempts for name, job in self.jobs.items()}
        return {name: self.earlier.get(name, ()) + now.get(name, ()) for name in {**now, **self.earlier}}

    @property
    def submitter(self) -> str:
        """User and checkout that it was submitted by, as its jobs' comments have them."""
        return f"{self.user}:{self.checkout}" if self.user else ""

    @property
    def is_mine(self) -> bool:
        """True if this account may change it: Slurm lets nobody else end or update its jobs."""
        return self.user in ("", account())

    @property
    def cluster(self) -> str:
        """The cluster that its jobs ask for, "" for the one of the machine that submits."""
        asked = [attempt.resources for job in self.jobs.values() for attempt in (job.planned, job.latest) if attempt]
        return next((named for one in [*asked, self.sentinel] if (named := one.get("clusters"))), "")

    @property
    def slurm_ids(self) -> set[str]:
        """The Slurm jobs that are written down, sentinels too."""
        attempts = (attempt for known in self.history.values() for attempt in known)
        return {id_ for attempt in attempts for id_ in (attempt.id, attempt.sentinel) if id_}

    def comment(self, job: str, *, attempt: int = 1, sentinel: bool = False, own: str = "") -> str:
        """The comment of one of its Slurm jobs, as `comment` writes it."""
        return comment(
            self.name, job, self.config_sha, attempt=attempt, sentinel=sentinel, own=own, submitter=self.submitter
        )

    def with_job(self, name: str, **changes: Any) -> Chain:
        """The chain with one job changed."""
        return replace(self, jobs={**self.jobs, name: replace(self.jobs[name], **changes)})

    def with_attempt(self, name: str, attempt: Attempt) -> Chain:
        """The chain with an attempt added, or, where its id is there, replaced."""
        before = [known for known in self.jobs[name].attempts if known.id != attempt.id]
        attempt = replace(attempt, config_sha=attempt.config_sha or self.config_sha)
        return self.with_job(name, skipped=None, planned=None, attempts=(*before, attempt))

    def with_sentinel(self, name: str, id_: str) -> Chain:
        """The chain with the latest attempt at a job watched by this sentinel."""
        *before, latest = self.jobs[name].attempts
        return self.with_job(name, attempts=(*before, replace(latest, sentinel=id_)))

    def after(self, names: set[str]) -> list[str]:
        """The jobs that wait for any of these, directly or not, in order; these aside."""
        reached, behind = set(names), []
        for name, job in self.jobs.items():
            if name not in reached and reached & set(job.needs):
                reached.add(name)
                behind.append(name)
        return behind


@dataclass(frozen=True, kw_only=True)
class JobComment:
    """The comment of a Slurm job, read: which chain and stage it belongs to, and with which configuration. Its number
    tells an attempt that Slurm submits late, when the next one is planned already, from that next one."""

    name: str
    job: str
    sha: str
    sentinel: bool
    attempt: int = 1
    own: str = ""
    """The comment that the header gives, which stands before it."""
    submitter: str = ""
    """User and checkout (`Chain.submitter`)."""


def comment(
    name: str, job: str, sha: str, *, attempt: int = 1, sentinel: bool = False, own: str = "", submitter: str = ""
) -> str:
    """The comment that marks a Slurm job as ours, in squeue and sacct alike; behind the header's `own`, if it has one.

    >>> comment("desk_noisy", "bc", "0f3c", own="grant 42")
    'grant 42 r2v:desk_noisy/bc/0f3c'
    >>> comment("desk_noisy", "bc", "0f3c", attempt=2, submitter="ada:1f2e3d4c")
    'r2v:desk_noisy/bc/0f3c.2@ada:1f2e3d4c'
    """
    number = f".{attempt}" if attempt > 1 else ""
    at = f"@{submitter}" if submitter else ""
    return f"{own} r2v:{name}/{job}{'~heal' if sentinel else ''}/{sha}{number}{at}".lstrip()


def parse_comment(text: str) -> JobComment | None:
    """A comment made by `comment`, read; None for any other."""
    pattern = r"(.*\s)?r2v:(\S+)/(\w+)(~heal)?/([0-9a-f]+)(?:\.(\d+))?(?:@(\S+))?"
    match = re.fullmatch(pattern, text.strip())
    if match is None:
        return None
    own = (match[1] or "").strip()
    attempt = int(match[6] or 1)
    return JobComment(
        name=match[2],
        job=match[3],
        sha=match[5],
        sentinel=bool(match[4]),
        attempt=attempt,
        own=own,
        submitter=match[7] or "",
    )


def account() -> str:
    """The name of the account that this process works for, or its number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def checkout_id(root: Path) -> str:
    """A short name of a checkout: a hash of its path."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]


def now() -> str:
    """The time as records hold it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder(root: Path, name: str) -> Path:
    """The folder of a chain's files."""
    return root / CHAINS / name


def names(root: Path = Path()) -> list[str]:
    """The chains of this checkout, in alphabetical order."""
    return sorted(path.parent.name for path in (root / CHAINS).glob("*/chain.json"))


def last_cluster(root: Path = Path()) -> str | None:
    """The cluster that the chain written last was submitted to, "" for this machine's own; None where there is no chain
    that can be read."""
    for name in sorted(names(root), key=lambda name: _written_at(root, name), reverse=True):
        with suppress(InputError):
            return read(root, name).cluster
    return None


def _written_at(root: Path, name: str) -> float:
    try:
        return (folder(root, name) / "chain.json").stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def lock(root: Path, name: str, *, wait: float = 0.0, take_over: bool = False) -> Iterator[None]:
    """The exclusive right to change a chain, for the length of the block. Raises UsageError where it is another user's,
    unless it is taken over, and LeaseConflict where another process has it for longer than `wait` seconds."""
    if not take_over:
        require_mine(root, name)
    with lease(folder(root, name) / "chain.lease", wait=wait):
        yield


def require_mine(root: Path, name: str) -> None:
    """Raises UsageError with the owner's name where a chain is another user's."""
    with suppress(InputError):  # a damaged one says so where it is read
        chain = find(root, name)
        if chain is not None and not chain.is_mine:
            raise UsageError(
                f"{name} is {chain.user}'s, whose jobs {account()} can neither end nor follow up; ask {chain.user}, or "
                "end those jobs together and take it over: r2v run_all ... --take-over"
            )


def read(root: Path, name: str) -> Chain:
    """A chain as it was last written. Raises InputError where it is missing or damaged."""
    path = folder(root, name) / "chain.json"
    try:
        value = read_hashed(path)
        if value.pop("format") != FORMAT:
            raise InputError(f"{path}: written by another version of R2V; use that one, or move the folder away")
        return from_dict(Chain, value)
    except FileNotFoundError:
        raise InputError(f"{path}: missing; no chain of this name was submitted from here; or else {_REMEDY}") from None
    except Damaged as error:
        raise InputError(f"{error}; move it away and {_REMEDY}") from None
    except (ValueError, LookupError) as error:
        raise InputError(f"{path}: damaged ({error!r}); move it away and {_REMEDY}") from None


def find(root: Path, name: str) -> Chain | None:
    """A chain as it was last written; None where there is none of this name. Raises InputError where it is damaged."""
    return read(root, name) if name in names(root) else None


def write(root: Path, chain: Chain) -> None:
    """Replace the chain's file. The caller holds its lease."""
    write_json(folder(root, chain.name) / "chain.json", hashed({"format": FORMAT, **asdict(chain)}))


def require_configuration(root: Path, chain: Chain) -> None:
    """Raises InputError where the configuration that the chain's jobs read is not what it was submitted with."""
    path = folder(root, chain.name) / "config.yaml"
    try:
        now = config_sha(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        now = f"unreadable ({getattr(error, 'strerror', None) or error})"
    if now != chain.config_sha:
        raise InputError(
            f"{path} is damaged: its content is {now}, chain.json says {chain.config_sha}; restore it, or submit the "
            "configuration anew: r2v run_all --config FILE"
        )


def config_sha(text: str) -> str:
    """The hash that tells one configuration, as YAML, from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
