"""Project session: one process's journal as part of the project, with its lease, ledger entry, caps and claims.

A process writes the first journal of its folder that no other process is writing: `folder` itself, else `folder/1`,
`folder/2` ... So the helpers of a stage, and a job that is started again while another process collects its batches,
write journals of their own, under one cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

from r2v.errors import LeaseConflict, UsageError
from r2v.llm.providers.claims import Adopt, Claimant, Claims, exclusive
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy, Spawn, WallClock
from r2v.llm.providers.provider_requests import RequestIdentity, reply_key
from r2v.llm.providers.spending.budget import SharedBudget, SpendTracker
from r2v.llm.providers.spending.journal_view import JOURNAL_LEASE
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger, Replies, Scope, closed
from r2v.llm.providers.spending.quota import PROJECT_CAP, Quota, current_payer
from r2v.log import logger
from r2v.storage.lease import lease

_MOST_WRITERS = 10_000  # bounds the search for a free folder; far above the processes of any cluster job


class Alone:
    """A journal outside any project: its own lease and cap, no ledger, no claims."""

    def take(self, folder: Path, holding: ExitStack) -> Path:
        """Take the journal's lease. Raises LeaseConflict."""
        holding.enter_context(lease(folder / JOURNAL_LEASE))
        return folder

    def budget(self, policy: DispatchPolicy, clock: WallClock) -> SharedBudget:
        """Return a budget with the journal's own cap."""
        return SharedBudget(policy.max_usd)

    async def open(self, tracker: SpendTracker, *_: object, pause: float) -> None:
        """Claim nothing."""

    def close(self, tracker: SpendTracker) -> None:
        """Write nothing."""


class JointBudget:
    """One budget for all models that a process asks for one payer, for as long as any of their journals is open.

    With a budget each, one model would wait for money that another reserves and does not use."""

    def __init__(self) -> None:
        self._budget: SharedBudget | None = None
        self._num_open = 0

    def join(self, make: Callable[[], SharedBudget]) -> SharedBudget:
        """Return the budget, from `make` for the first open journal."""
        self._budget = make() if self._budget is None else self._budget
        self._num_open += 1
        return self._budget

    def leave(self) -> None:
        """Count one journal as closed; the budget ends with the last."""
        self._num_open -= 1
        if not self._num_open:
            self._budget = None


class ProjectSession:
    """The project at `root`, for the writer of one journal.

    payer: the folder that pays outside of any pipeline (`paying`); journals of one payer share
    `teacher.max_usd`. adopt: collects the batches of a dead writer's journal; None: draw all replies anew, use none of
    other journals. project_max_usd: the project's cap; the
    first process that names one writes it into the ledger. budget: shared by several models of this process, in place
    of the payer's. joint: the same, where journals are opened and closed more than once. numbered: take `folder/1`,
    `folder/2` ... if another process writes the journal of `folder`.
    """

    def __init__(
        self,
        root: Path,
        *,
        payer: Path,
        scope: Scope,
        adopt: Adopt | None,
        project_max_usd: float | None = None,
        budget: SharedBudget | None = None,
        joint: JointBudget | None = None,
        numbered: bool = True,
    ) -> None:
        self._ledger, self._scope, self._adopt = ProjectLedger(root), dict(scope), adopt
        self._payer, self._project_max_usd = current_payer() or self._ledger.name_of(payer), project_max_usd
        self.numbered, self._budget = numbered, budget
        self._joint, self._joined = joint or JointBudget(), False
        self._entry: JournalEntry | None = None
        self._quota: Quota | None = None
        self._claims: Claims | None = None

    def take(self, folder: Path, holding: ExitStack) -> Path:
        """Take the lease of the first journal that no other process writes, and return its folder. Raise LeaseConflict
        without `numbered`."""
        holding.callback(self._leave)
        for journal_folder in self._folders(folder):
            try:
                holding.enter_context(lease(journal_folder / JOURNAL_LEASE))
                return journal_folder
            except LeaseConflict:  # another process writes this one; the next number may be free
                if not self.numbered:
                    raise
        raise LeaseConflict(f"{folder}: {_MOST_WRITERS} processes write journals in it; wait until some end")

    def _leave(self) -> None:
        if self._joined:
            self._joint.leave()
        self._joined = False

    def _folders(self, folder: Path) -> Iterator[Path]:
        yield folder
        yield from (folder / str(number) for number in range(1, _MOST_WRITERS))

    def budget(self, policy: DispatchPolicy, clock: WallClock) -> SharedBudget:
        """Return a budget under the caps of the payer and of the project."""

        def holding() -> AbstractAsyncContextManager[None]:
            return exclusive(self._ledger, clock)

        budget = self._budget
        if budget is None:
            quota = Quota(self._ledger, policy.max_usd, holding, clock)
            budget = self._joint.join(lambda: SharedBudget(policy.max_usd, quota=quota))
            self._joined = True
        elif budget.quota is None:
            budget.quota = Quota(self._ledger, None, holding, clock)
        self._quota = budget.quota
        return budget

    async def open(
        self,
        tracker: SpendTracker,
        in_flight: list[RequestIdentity],
        claimant: Claimant | None,
        clock: WallClock,
        spawn: Spawn,
        *,
        pause: float,
    ) -> Claims | None:
        """Enter the journal into the ledger and return its claims, or None if it asks alone. Raise UsageError if the
        project has another cap, and as `ProjectLedger.set_cap` does."""
        async with exclusive(self._ledger, clock):
            self._enter(tracker)
        keys = [reply_key(identity) for identity in in_flight]
        # claims of this journal's earlier writers would block other processes for requests that are never sent
        if tracker.state.claims != set(keys):
            await tracker.write({"row": "claims", "keys": keys})
        if self._adopt is None or claimant is None:
            return None
        replies = Replies(self._ledger, self._scope, tracker.state.run)
        self._claims = Claims(self._ledger, replies, tracker, claimant, self._adopt, clock, spawn, pause=pause)
        await self._claims.look()
        return self._claims

    def _enter(self, tracker: SpendTracker) -> None:
        run, folder = tracker.state.run, self._ledger.name_of(tracker.journal.path.parent)
        # collecting the batches of another payer's journal must not move their cost to this one
        payer = next((entry.payer for entry in self._ledger.entries() if entry.run == run), self._payer)
        entry = JournalEntry(
            run=run,
            folder=folder,
            payer=payer,
            scope=self._scope,
            open=True,
            usd=tracker.committed,
            answered=tracker.state.counts["answered"],
        )
        assert self._quota is not None, "`budget` is called before `open`"
        self._agree_on_cap(run)
        self._entry = self._quota.start(entry, tracker.committed)
        self._ledger.write(self._entry)

    def _agree_on_cap(self, run: str) -> None:
        cap, given = self._ledger.cap, self._project_max_usd
        if given is None or given == cap:
            return
        if cap is not None:
            raise UsageError(
                f"{PROJECT_CAP}={given:g}: this project's cap is {cap:g}, for all its processes; leave the key "
                f"out, or change the cap by `r2v providers ledger --max-usd {given:g}`"
            )
        first = None if self._quota is None else self._quota.entry
        self._ledger.set_cap(given, ours={run} if first is None else {run, first.run})

    def close(self, tracker: SpendTracker) -> None:
        """Write the final cost and count of answers into the ledger."""
        if self._claims is not None and self._claims.reused:
            logger.info("  replies reused from the project: replies=%d", self._claims.reused)
        if self._entry is not None:
            answered = tracker.state.counts["answered"]
            self._ledger.write(closed(self._entry, usd=tracker.committed, answered=answered))
            self._entry = None
