"""Rounds of policy iteration in figures: what the router so far played, what that showed, and what it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean

from r2v.constraints import CountOrNone, NotNegative, Share
from r2v.router.escalation import escalates
from r2v.router.labels import FeatureRow
from r2v.router.models import RouterModel


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """One round: what was played, what it showed, and what it changed."""

    round: CountOrNone
    thresholds: dict[str, Share] = field(default_factory=dict)
    """By budget; none in round 0."""
    n_tasks: CountOrNone
    n_steps: CountOrNone
    n_disagreements: CountOrNone
    n_gain: CountOrNone
    """Steps at which asking the LLM was worth more than not asking."""
    n_harm: CountOrNone
    """Steps at which it was worth less."""
    llm_call_rate: Share
    cost: NotNegative
    """USD as billed that it took: its episodes, the LLM's proposals at their steps, and all continuations."""
    auroc_before: Share | None = None
    """How well the router that played tells this round's gains, on calibration tasks; None where there is none."""
    auroc_after: Share | None = None
    """The same of the router that is fitted on this round too."""
    moved: Share | None = None
    """Share of these steps whose decision it changes, at the threshold that was played."""

    @classmethod
    def of(
        cls,
        number: int,
        thresholds: dict[str, float],
        rows: Sequence[FeatureRow],
        before: RouterModel | None,
        after: RouterModel | None,
    ) -> RoundFigures:
        """Of a round's rows; `before` is the router that played them, `after` the one fitted on them too."""
        held = [row for row in rows if row.split == "calibration"]
        decided = [row for row in held if row.threshold is not None and before is not None and after is not None]
        return cls(
            round=number,
            thresholds=thresholds,
            n_tasks=len({row.task_id for row in rows}),
            n_steps=len(rows),
            n_disagreements=sum(bool(row.disagrees) for row in rows),
            n_gain=sum((row.gain or 0) > 0 for row in rows),
            n_harm=sum((row.gain or 0) < 0 for row in rows),
            llm_call_rate=round(fmean([row.actor != "slm" for row in rows] or [0.0]), 6),
            cost=round(sum(row.spent for row in rows), 6),
            auroc_before=_auroc(before, held),
            auroc_after=_auroc(after, held),
            moved=round(fmean(_moves(before, after, row) for row in decided), 6) if decided else None,
        )

    def plain(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


def _auroc(model: RouterModel | None, rows: Sequence[FeatureRow]) -> float | None:
    from sklearn.metrics import roc_auc_score

    gains = [(row.gain or 0) > 0 for row in rows]
    if model is None or len(set(gains)) < 2:
        return None
    return round(float(roc_auc_score(gains, [model.predict(row.features) for row in rows])), 6)


def _moves(before: RouterModel | None, after: RouterModel | None, row: FeatureRow) -> bool:
    assert before is not None and after is not None and row.threshold is not None
    return escalates(before.predict(row.features), row.threshold) != escalates(
        after.predict(row.features), row.threshold
    )
