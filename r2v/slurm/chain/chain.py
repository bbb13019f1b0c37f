"""The chain: the Slurm jobs of one pipeline and every attempt at them, kept in a file for any later process.

    outputs/.chains/desk_noisy/chain.json        the attempts, replaced whole under the lease chain.lease
                               config.yaml       the configuration that every job of the chain reads
                               jobs/<job id>/    written by that Slurm job alone: start, events, error, exit

`chain.json` holds a hash of itself and one of the configuration. It is written before the first sbatch and after each
one. Attempts that a killed submitter could not record are found in the queue: a job's comment names its chain, its
stage and the configuration's hash.
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
"""Option of the runner's command line that names chain, job and attempt as CHAIN/JOB.2."""
WHOLE = "all"
"""The job name in a sentinel's comment: a sentinel watches all jobs of its chain."""


@dataclass(frozen=True, kw_only=True)
class AttemptFailure:
    """The failure of an attempt, and the action that healing took."""

    kind: str
    line: str
    action: str
    at: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One submission of a job."""

    id: str
    sentinel: str | None = None
    """Id of the sentinel that watches it with all other queued jobs of its chain."""
    resources: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    reason: str = "first"
    """first, rerun, resume; the kind of failure that it answers; or dependency, for a pending job that the site
    killed with its parent."""
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
    """An attempt that is due for submission, or submitted with its id not yet recorded."""
    recipe: str = ""
    """The recipe of its artifact, by settings alone."""
    owner: str = ""
    """The chain that makes the same artifact for this one (`r2v.slurm.healing.shared_stages`); "" for none."""
    asked: dict[str, str] = field(default_factory=dict)
    """Directives of its submission, in case the owner stops and this chain has to make the artifact."""

    @property
    def latest(self) -> Attempt | None:
        """The newest attempt, which decides the job's state."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_shared(self) -> bool:
        """True while another chain makes its artifact, which is not published here yet."""
        return bool(self.owner) and not self.skipped

    @property
    def next_number(self) -> int:
        """The number of the planned or next attempt, from 1 on."""
        return len(self.attempts) + 1

    @property
    def since_asked(self) -> tuple[Attempt, ...]:
        """The attempts since the last one that a person asked for, that one included."""
        asked_for = (index for index, attempt in enumerate(self.attempts) if attempt.reason in ASKED_FOR)
        return self.attempts[max(asked_for, default=0) :]


@dataclass(frozen=True, kw_only=True)
class HealingLimits:
    """The limits of healing: counted attempts of each job, GPU-hours of the whole chain (None: no cap)."""

    attempts: int = 3
    gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Every submission of one pipeline. `code` identifies R2V's own code; `snapshot` (None: the live checkout)."""

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
    """The account that submits its jobs; "" if none is recorded."""
    checkout: str = ""
    """Hash of the checkout's path, since one user may have several checkouts."""
    cancelled: str | None = None
    limits: HealingLimits = field(default_factory=HealingLimits)
    allow_env: tuple[str, ...] = ()
    """Names of environment variables that its jobs may send as keys (--allow-env)."""
    sentinel: dict[str, str] = field(default_factory=dict)
    """The resources of a sentinel."""
    jobs: dict[str, ChainJob] = field(default_factory=dict)
    earlier: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)
    """By job: attempts under earlier configurations."""

    @property
    def history(self) -> dict[str, tuple[Attempt, ...]]:
        """By job: every attempt, oldest first."""
        now = {name: job.attempts for name, job in self.jobs.items()}
        return {name: self.earlier.get(name, ()) + now.get(name, ()) for name in {**now, **self.earlier}}

    @property
    def submitter(self) -> str:
        """User and checkout that submitted it, as written in job comments; "" if unrecorded."""
        return f"{self.user}:{self.checkout}" if self.user else ""

    @property
    def is_mine(self) -> bool:
        """True if this account may change it: Slurm lets no other user cancel or update its jobs."""
        return self.user in ("", account())

    @property
    def cluster(self) -> str:
        """The cluster that its jobs name; "" for the submitting machine's own."""
        requests = [attempt.resources for job in self.jobs.values() for attempt in (job.planned, job.latest) if attempt]
        return next((named for directives in [*requests, self.sentinel] if (named := directives.get("clusters"))), "")

    @property
    def slurm_ids(self) -> set[str]:
        """Ids of all recorded Slurm jobs, sentinels included."""
        attempts = (attempt for job_attempts in self.history.values() for attempt in job_attempts)
        return {id_ for attempt in attempts for id_ in (attempt.id, attempt.sentinel) if id_}

    def comment(self, job: str, *, attempt: int = 1, sentinel: bool = False, own: str = "") -> str:
        """Return the comment of one of its Slurm jobs, as `comment` writes it."""
        return comment(
            self.name, job, self.config_sha, attempt=attempt, sentinel=sentinel, own=own, submitter=self.submitter
        )

    def with_job(self, name: str, **changes: Any) -> Chain:
        """Return the chain with fields of one job replaced."""
        return replace(self, jobs={**self.jobs, name: replace(self.jobs[name], **changes)})

    def with_attempt(self, name: str, attempt: Attempt) -> Chain:
        """Return the chain with an attempt added, or replaced if its id is recorded."""
        before = [earlier for earlier in self.jobs[name].attempts if earlier.id != attempt.id]
        attempt = replace(attempt, config_sha=attempt.config_sha or self.config_sha)
        return self.with_job(name, skipped=None, planned=None, attempts=(*before, attempt))

    def with_sentinel(self, name: str, id_: str) -> Chain:
        """Return the chain with a job's latest attempt watched by this sentinel."""
        *before, latest = self.jobs[name].attempts
        return self.with_job(name, attempts=(*before, replace(latest, sentinel=id_)))

    def after(self, names: set[str]) -> list[str]:
        """Return the other jobs that depend on any of `names`, directly or not, in order."""
        reached, behind = set(names), []
        for name, job in self.jobs.items():
            if name not in reached and reached & set(job.needs):
                reached.add(name)
                behind.append(name)
        return behind


@dataclass(frozen=True, kw_only=True)
class JobComment:
    """A parsed comment of a Slurm job: its chain, stage and configuration. The attempt's number separates a submission
    that Slurm carries out late from the next attempt, which may be planned by then."""

    name: str
    job: str
    sha: str
    sentinel: bool
    attempt: int = 1
    own: str = ""
    """The header's own comment, which precedes the mark."""
    submitter: str = ""
    """User and checkout (`Chain.submitter`)."""


def comment(
    name: str, job: str, sha: str, *, attempt: int = 1, sentinel: bool = False, own: str = "", submitter: str = ""
) -> str:
    """Return the comment that marks a Slurm job as R2V's in squeue and sacct, after the header's `own` comment.

    >>> comment("desk_noisy", "bc", "0f3c", own="grant 42")
    'grant 42 r2v:desk_noisy/bc/0f3c'
    >>> comment("desk_noisy", "bc", "0f3c", attempt=2, submitter="ada:1f2e3d4c")
    'r2v:desk_noisy/bc/0f3c.2@ada:1f2e3d4c'
    """
    number = f".{attempt}" if attempt > 1 else ""
    at = f"@{submitter}" if submitter else ""
    return f"{own} r2v:{name}/{job}{'~heal' if sentinel else ''}/{sha}{number}{at}".lstrip()


def parse_comment(text: str) -> JobComment | None:
    """Parse a comment written by `comment`; None for any other."""
    pattern = r"(.*\s)?r2v:(\S+)/(\w+)(~heal)?/([0-9a-f]+)(?:\.(\d+))?(?:@(\S+))?"
    match = re.fullmatch(pattern, text.strip())
    if match is None:
        return None
    return JobComment(
        name=match[2],
        job=match[3],
        sha=match[5],
        sentinel=bool(match[4]),
        attempt=int(match[6] or 1),
        own=(match[1] or "").strip(),
        submitter=match[7] or "",
    )


def account() -> str:
    """Return the name of this process's account, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # containers run under user ids that no passwd file lists
        return str(os.geteuid())


def checkout_id(root: Path) -> str:
    """Return a short hash of a checkout's path."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]


def now() -> str:
    """Return the time as records hold it: ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def folder(root: Path, name: str) -> Path:
    """Return the folder of a chain's files."""
    return root / CHAINS / name


def names(root: Path = Path()) -> list[str]:
    """Return the names of this checkout's chains, sorted."""
    return sorted(path.parent.name for path in (root / CHAINS).glob("*/chain.json"))


def last_cluster(root: Path = Path()) -> str | None:
    """Return the cluster of the chain written last, "" for this machine's own; None without a readable chain."""
    for name in sorted(names(root), key=lambda name: _written_at(root, name), reverse=True):
        with suppress(InputError):  # a damaged chain is reported by the commands that read it
            return read(root, name).cluster
    return None


def _written_at(root: Path, name: str) -> float:
    try:
        return (folder(root, name) / "chain.json").stat().st_mtime
    except OSError:  # the folder was removed after it was listed
        return 0.0


@contextmanager
def lock(root: Path, name: str, *, wait: float = 0.0, take_over: bool = False) -> Iterator[None]:
    """Hold the exclusive right to change a chain within the block. Raises UsageError if it is another user's, unless
    `take_over`; LeaseConflict if another process holds it for longer than `wait` seconds."""
    with suppress(InputError):  # a damaged chain is reported by the commands that read it
        chain = None if take_over else find(root, name)
        if chain is not None and not chain.is_mine:
            raise UsageError(
                f"{name} is {chain.user}'s, whose jobs {account()} can neither end nor follow up; ask {chain.user}, or "
                "end those jobs together and take it over: r2v run_all ... --take-over"
            )
    with lease(folder(root, name) / "chain.lease", wait=wait):
        yield


def read(root: Path, name: str) -> Chain:
    """Return a chain as it was last written. Raises InputError if it is missing or damaged."""
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
    """Return a chain as it was last written; None if none has this name. Raises InputError if it is damaged."""
    return read(root, name) if name in names(root) else None


def write(root: Path, chain: Chain) -> None:
    """Replace the chain's file. The caller holds its lease."""
    write_json(folder(root, chain.name) / "chain.json", hashed({"format": FORMAT, **asdict(chain)}))


def require_configuration(root: Path, chain: Chain) -> None:
    """Raise InputError if the configuration file of a chain's jobs is not the one that was submitted."""
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
    """Return the hash that identifies a configuration's YAML text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
