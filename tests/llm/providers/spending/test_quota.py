"""A cap shared by several processes: never exceeded on the emulator's bill, whatever fails and whichever process is
killed."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.errors import EnvironmentFault, LeaseConflict, UsageError
from r2v.llm.providers.prices import rate_of
from r2v.llm.providers.spending.budget import SharedBudget
from r2v.llm.providers.spending.project import ProjectLedger
from r2v.llm.waves import Waves
from r2v.wire.exchange import TokenCounts
from tests.llm.talk import MODELS, converse, environment, killed, play, remote

RATE = rate_of("openai", MODELS["openai"])
WORST = RATE.worst_case(60, 50, batch=False)
FAILING = (Fault("500", at=tuple(range(4, 99, 8)), on="sync"), Fault("commit_then_reset", at=tuple(range(2, 99, 8))))
"""Every fourth call fails, half of these after it was billed."""


def billed(emulator: Emulator) -> float:
    """Return the total of the provider's ledger in USD."""
    return sum(
        RATE.usd(
            TokenCounts(fresh=bill.tokens_in - bill.cached_in, cached=bill.cached_in, output=bill.tokens_out),
            batch=bill.mode == "batch",
        )
        for bill in emulator.ledger().bills
    )


async def side_by_side(project: Path, payers: list[str], count: int, **plan: object) -> list[BaseException | object]:
    """Run one process per payer; each asks `count` different questions."""

    async def one(number: int, payer: str) -> object:
        waves = Waves(max_conversations=count)
        model = waves.model(remote("openai", project / payer, project=project, mode="concurrent", **plan))  # type: ignore[arg-type]
        return await waves.play(partial(converse, model, 1000 * number + n, 1) for n in range(count))

    return await asyncio.gather(*(one(n, payer) for n, payer in enumerate(payers)), return_exceptions=True)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> object:
    def made(*faults: Fault) -> Emulator:
        emulator = Emulator(faults=faults, lifecycle=Lifecycle(polls=1))
        emulator.__enter__()
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        opened.append(emulator)
        return emulator

    opened: list[Emulator] = []
    yield made
    for emulator in opened:
        emulator.__exit__(None, None, None)


def whole(served: object, tmp_path: Path) -> float:
    """Return the cost of all requests of four processes without a cap."""
    emulator = served()  # type: ignore[operator]
    asyncio.run(side_by_side(tmp_path / "free", ["a", "b", "c", "d"], 12))
    assert len(emulator.ledger().bills) == 48
    return billed(emulator)


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("shared", ["payer", "project"])
def test_four_processes_never_pass_the_cap_and_come_close(
    shared: str, failing: bool, served: object, tmp_path: Path
) -> None:
    half = 0.5 * whole(served, tmp_path)
    cap = half + (6 * WORST if failing else WORST)  # lost calls are booked at their worst case
    emulator = served(*FAILING if failing else ())  # type: ignore[operator]
    payers = ["a"] * 4 if shared == "payer" else ["a", "b", "c", "d"]
    plan = {"max_usd": cap} if shared == "payer" else {"project_max_usd": cap}
    ends = asyncio.run(side_by_side(tmp_path / "capped", payers, 12, **plan))
    name = "teacher.max_usd" if shared == "payer" else "teacher.project_max_usd"
    refused = [end for end in ends if isinstance(end, EnvironmentFault)]
    assert refused and all(str(end).startswith(f"{name}={cap}: $") for end in refused), ends
    assert billed(emulator) <= cap and (failing or billed(emulator) > 0.9 * half)
    ProjectLedger(tmp_path / "capped").set_cap(None)
    asyncio.run(side_by_side(tmp_path / "capped", payers, 12, attempts=9))
    answered = [bill.turn for bill in emulator.ledger().bills if bill.turn]
    assert len({(conversation, turn) for _, conversation, turn in answered}) == 48


def test_what_a_killed_process_was_allotted_and_did_not_commit_is_free_again(served: object, tmp_path: Path) -> None:
    emulator = served()  # type: ignore[operator]
    cap = 1.2 * sum(RATE.worst_case(40, 50, batch=True) for _ in range(4))
    spec = {
        "provider": "openai",
        "folder": str(tmp_path / "dead"),
        "urls": environment(emulator),
        "count": 4,
        "turns": 1,
        "at": 3,
        "how": "after",
        "plan": {"project": tmp_path, "project_max_usd": cap, "batch_size": 1},
    }
    assert killed(spec)
    play("openai", tmp_path / "heir", count=4, turns=1, project=tmp_path, project_max_usd=cap, batch_size=1)
    assert set(emulator.ledger().paid().values()) == {1} and billed(emulator) <= cap
    said = play("openai", tmp_path / "third", count=4, turns=1, project=tmp_path, project_max_usd=cap)
    assert all(len(turns) == 1 for turns in said) and len(emulator.ledger().bills) == 4


def test_the_cap_that_one_process_names_binds_all_and_is_one_for_all(served: object, tmp_path: Path) -> None:
    emulator = served()  # type: ignore[operator]
    cap = 2.5 * WORST
    with pytest.raises(EnvironmentFault, match=r"teacher.project_max_usd=.*by `r2v providers ledger --max-usd USD`"):
        play("openai", tmp_path / "a", count=60, turns=1, project=tmp_path, project_max_usd=cap, mode="concurrent")
    with pytest.raises(EnvironmentFault, match="teacher.project_max_usd="):
        play("openai", tmp_path / "silent", count=90, turns=1, project=tmp_path, mode="concurrent")
    assert billed(emulator) <= cap
    with pytest.raises(
        UsageError, match=f"this project's cap is {cap:g}, for all its processes; leave the key out, or"
    ):
        play("openai", tmp_path / "b", count=1, turns=1, project=tmp_path, project_max_usd=2 * cap)


def test_no_cap_is_set_beside_a_process_that_would_not_heed_it(served: object, tmp_path: Path) -> None:
    served()  # type: ignore[operator]

    async def beside() -> None:
        async with remote("openai", tmp_path / "free", project=tmp_path):
            with pytest.raises(LeaseConflict, match="free: a process that began without a project cap"):
                async with remote("openai", tmp_path / "capped", project=tmp_path, project_max_usd=1.0):
                    pass

    asyncio.run(beside())
    play("openai", tmp_path / "capped", count=1, turns=1, project=tmp_path, project_max_usd=1.0)


def test_models_of_one_process_share_its_quota(served: object, tmp_path: Path) -> None:
    """Two models that wait for each other would keep shares of their own for ever."""
    emulator = served()  # type: ignore[operator]
    cap = 12 * WORST

    async def both() -> float:
        budget = SharedBudget(None, num_trackers=2)
        async with (
            remote("openai", tmp_path / "a", project=tmp_path, project_max_usd=cap, budget=budget) as first,
            remote("openai", tmp_path / "b", project=tmp_path, project_max_usd=cap, budget=budget, scope="b") as second,
        ):
            assert budget.quota is not None and first.tracker.budget is second.tracker.budget
            assert await budget.extend(6 * WORST)
            entries = ProjectLedger(tmp_path).entries()
            assert [entry.pool is None for entry in entries].count(True) == 1
            ledger = ProjectLedger(tmp_path)
            return sum(ledger.committed(entry) for entry in ledger.entries())

    assert 6 * WORST <= asyncio.run(both()) <= cap
    assert not emulator.ledger().bills and not any(entry.open for entry in ProjectLedger(tmp_path).entries())


def test_a_project_whose_cap_is_spent_refuses_in_one_line(served: object, tmp_path: Path) -> None:
    emulator = served()  # type: ignore[operator]
    play("openai", tmp_path / "a", count=4, turns=2, project=tmp_path)
    spent = billed(emulator)
    with pytest.raises(EnvironmentFault, match=r"teacher.project_max_usd=.*: \$0\.\d+ are spent and the next request"):
        play("openai", tmp_path / "b", count=9, turns=1, project=tmp_path, project_max_usd=spent)
    assert billed(emulator) == spent
    said = play("openai", tmp_path / "c", count=4, turns=2, project=tmp_path, project_max_usd=spent)
    assert all(len(turns) == 2 for turns in said), "what was paid is answered under any cap"
