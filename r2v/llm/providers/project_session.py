"""ProjectSession: what makes one process' journal one of the project's.

    ProjectSession(root, payer=Path("data/runs/desk_.../provider"), scope={...}, adopt=..., project_max_usd=50)

A process writes the first journal of its folder that nobody else is writing: `folder` itself, else `folder/1`,
`folder/2` ... So helpers beside a stage, and a job that is started again while another one brings its batches home,
write journals of their own, under one cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path

from r2v.errors import LeaseConflict, UsageError
from r2v.llm.providers.claims import Adopt, Claimant, Claims, exclusive
from r2v.llm.providers.dispatch.dispatch_policy import DispatchPolicy
from r2v.llm.providers.dispatch.result_handler import Spawn, WallClock
from r2v.llm.providers.provider_requests import RequestIdentity, reply_key
from r2v.llm.providers.spending.budget import SharedBudget, SpendTracker
from r2v.llm.providers.spending.journal_view import JOURNAL_LEASE
from r2v.llm.providers.spending.payer import current_payer
from r2v.llm.providers.spending.project import JournalEntry, ProjectLedger, Replies, Scope, closed
from r2v.llm.providers.spending.quota import PROJECT_CAP, Quota
from r2v.log import logger
from r2v.storage.lease import lease

_MOST_WRITERS = 10_000


class Alone:
    """No project: a journal that stands for itself."""

    def take(self, folder: Path, holding: ExitStack) -> Path:
        """Take the journal's lease. Raises LeaseConflict."""
        holding.enter_context(lease(folder / JOURNAL_LEASE))
        return folder

    def budget(self, policy: DispatchPolicy, clock: WallClock) -> SharedBudget:
        """The journal's own cap."""
        return SharedBudget(policy.max_usd)

    async def open(self, tracker: SpendTracker, *_: object, pause: float) -> None:
        """Nothing is claimed."""

    def close(self, tracker: SpendTracker) -> None:
        """Nothing is written down."""


class JointBudget:
    """The budget of the models that one process asks for one payer: one while any of their journals is open. With one
    each, a model would wait for what the other holds and does not use."""

    def __init__(self) -> None:
        self._budget: SharedBudget | None = None
        self._num_open = 0

    def join(self, make: Callable[[], SharedBudget]) -> SharedBudget:
        """The budget; `make` makes it where none of the journals is open."""
        self._budget = make() if self._budget is None else self._budget
        self._num_open += 1
        return self._budget

    def leave(self) -> None:
        """A journal is closed."""
        self._num_open -= 1
        if not self._num_open:
            self._budget = None


class ProjectSession:
    """The project at `root` as one journal's writer meets it.

    payer: who pays where no pipeline does (`spending.payer`); journals of one payer share `teacher.max_usd`. adopt:
    brings the batches of a dead writer's journal home. project_max_usd: the project's cap, which is written into the
    ledger by whoever names it first. budget: of several models that one process asks, in place of the payer's. joint:
    the same, where journals are opened and closed more than once. alone:
    others' answers are not used, because it was asked for anew. numbered: take `folder/1`, `folder/2` ...
    where another process writes the journal of `folder`.
    """

    def __init__(
        self,
        root: Path,
        *,
        payer: Path,
        scope: Scope,
        adopt: Adopt,
        project_max_usd: float | None = None,
        budget: SharedBudget | None = None,
        joint: JointBudget | None = None,
        alone: bool = False,
        numbered: bool = True,
    ) -> None:
        self._ledger, self._scope, self._adopt = ProjectLedger(root), dict(scope), adopt
        self._payer, self._project_max_usd = current_payer() or self._ledger.name_of(payer), project_max_usd
        self._alone, self.numbered, self._budget = alone, numbered, budget
        self._joint, self._joined = joint or JointBudget(), False
        self._entry: JournalEntry | None = None
        self._quota: Quota | None = None
        self._claims: Claims | None = None

    def take(self, folder: Path, holding: ExitStack) -> Path:
        """Take the lease of the first journal that no other process writes, and return its folder. Raise LeaseConflict
        without `numbered`."""
        holding.callback(self._leave)
        for place in self._places(folder):
            try:
                holding.enter_context(lease(place / JOURNAL_LEASE))
                return place
            except LeaseConflict:
                if not self.numbered:
                    raise
        raise LeaseConflict(f"{folder}: {_MOST_WRITERS} processes write journals in it; wait until some end")

    def _leave(self) -> None:
        if self._joined:
            self._joint.leave()
        self._joined = False

    def _places(self, folder: Path) -> Iterator[Path]:
        yield folder
        yield from (folder / str(number) for number in range(1, _MOST_WRITERS))

    def budget(self, policy: DispatchPolicy, clock: WallClock) -> SharedBudget:
        """The caps of the payer and of the project."""

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
        claimant: Claimant,
        clock: WallClock,
        spawn: Spawn,
        *,
        pause: float,
    ) -> Claims | None:
        """Enter the journal into the ledger; its claims, or None where it asks alone. Raises UsageError where another
        cap of the project is in force, and as `ProjectLedger.set_cap` does."""
        async with exclusive(self._ledger, clock):
            self._enter(tracker)
        keys = [reply_key(identity) for identity in in_flight]
        if tracker.state.claims != set(keys):  # those of this journal's earlier writers hold no longer
            await tracker.write({"row": "claims", "keys": keys})
        if self._alone:
            return None
        replies = Replies(self._ledger, self._scope, tracker.state.run)
        self._claims = Claims(self._ledger, replies, tracker, claimant, self._adopt, clock, spawn, pause=pause)
        await self._claims.look()
        return self._claims

    def _enter(self, tracker: SpendTracker) -> None:
        run, folder = tracker.state.run, self._ledger.name_of(tracker.journal.path.parent)
        # who brings another's batches home does not pay for them
        payer = next((one.payer for one in self._ledger.entries() if one.run == run), self._payer)
        entry = JournalEntry(
            run=run,
            folder=folder,
            payer=payer,
            scope=self._scope,
            open=True,
            usd=tracker.committed,
            answered=tracker.state.counts["answered"],
        )
        assert self._quota is not None, "the budget was asked for"
        self._agree_on_cap(run)
        self._entry = self._quota.start(entry, tracker.committed)
        self._ledger.write(self._entry)

    def _agree_on_cap(self, run: str) -> None:
        known, given = self._ledger.cap, self._project_max_usd
        if given is None or given == known:
            return
        if known is not None:
            raise UsageError(
                f"{PROJECT_CAP}={given:g}: this project's cap is {known:g}, for all its processes; leave the key "
                f"out, or change the cap by `r2v providers ledger --max-usd {given:g}`"
            )
        first = None if self._quota is None else self._quota.entry
        self._ledger.set_cap(given, ours={run} if first is None else {run, first.run})

    def close(self, tracker: SpendTracker) -> None:
        """Write down what it came to."""
        if self._claims is not None and self._claims.reused:
            logger.info("  %d replies were paid for elsewhere in this project", self._claims.reused)
        if self._entry is not None:
            answered = tracker.state.counts["answered"]
            self._ledger.write(closed(self._entry, usd=tracker.committed, answered=answered))
            self._entry = None
