"""If every request is refused before the first answer, the run ends, and none is remembered as refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from r2v.emulator import Emulator, Fault, Lifecycle
from r2v.errors import EnvironmentFault
from tests.llm.talk import environment, play


@pytest.mark.parametrize("mode", ["batch", "concurrent"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_run_whose_first_answers_are_all_refused_stops_with_the_reason(
    provider: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty conversations, all refused by the provider: the requests are not at fault."""
    refusal = Fault("line_400") if mode == "batch" else Fault("call_400", on="sync")
    with Emulator(faults=[refusal], lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(EnvironmentFault, match="no request was answered, and all were refused, first: (400|inval)"):
            play(provider, tmp_path, count=40, turns=1, mode=mode)
        assert not emulator.ledger().bills
    with Emulator(lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        said = play(provider, tmp_path, count=40, turns=1, mode=mode)
        refused = sum(turns == ["!final"] for turns in said)
        assert refused < 10 and sorted(emulator.ledger().paid().values()) == [1] * (40 - refused)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_one_answer_among_refusals_and_the_run_goes_on(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = tuple(n for n in range(1, 31) if n != 7)
    with Emulator(faults=[Fault("line_400", at=refused)], lifecycle=Lifecycle(polls=1)) as emulator:
        for name, value in environment(emulator).items():
            monkeypatch.setenv(name, value)
        said = play(provider, tmp_path, count=30, turns=1)
    assert sum(turns == ["!final"] for turns in said) == 29
