"""A training that is stopped or killed at any point resumes to the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import HierarchicalConfig
from r2v.errors import InputError, Interrupted
from r2v.hrl.training import checkpoint
from r2v.hrl.training.metrics import METRICS_FILE
from r2v.hrl.training.state import TRAINING_PHASES, hash_of
from r2v.storage.checkpoint import KEPT, LATEST, numbers
from r2v.storage.removal import NotOurs
from tests import warm

from .. import trainers
from ..trainers import BASE, EVERYTHING, lasting, lines, trainer_of

pytestmark = pytest.mark.numerical

SMALL = replace(BASE, iterations=2, save_every=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trainers.model_at(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[HierarchicalConfig], Any]:
    """Return a function that gives the folder and the report of a configuration trained in one go, made once."""
    known: dict[str, tuple[Path, dict[str, Any]]] = {}

    def of(h: HierarchicalConfig) -> tuple[Path, dict[str, Any]]:
        if str(h) not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            known[str(h)] = folder, trainer_of(model, folder, h).run()
        return known[str(h)]

    return of


@pytest.mark.parametrize(
    "h",
    [replace(h, iterations=2, evaluate_every=9) for h in (BASE, EVERYTHING)],
    ids=["base", "everything"],
)
def test_stopped_before_every_phase_it_ends_in_the_same_bits(
    h: HierarchicalConfig, model: Path, tmp_path: Path, undisturbed: Callable[..., Any]
) -> None:
    """Stopped after each phase and resumed by a new trainer; a warm-up that is over stays over."""
    passed, report = [], None
    while report is None:
        trainer = trainer_of(model, tmp_path, h, stop=lambda: True)
        try:
            report = trainer.run()
        except Interrupted as stop:
            assert "\n" not in str(stop) and str(tmp_path / LATEST) in str(stop)
            passed.append((trainer.state.iteration, trainer.state.phase))
    assert passed == [
        (0, "insert"),
        (0, "critic"),
        (0, "finish"),
        *((1, phase) for phase in TRAINING_PHASES),
    ]
    folder, whole = undisturbed(h)
    assert report == whole and lasting(tmp_path) == lasting(folder)
    assert ["actor/loss" in line for line in lines(tmp_path)] == [False, True]
    assert len(numbers(tmp_path)) == KEPT


def test_killed_at_once_it_ends_in_the_same_bits(model: Path, tmp_path: Path, undisturbed: Callable[..., Any]) -> None:
    """By SIGKILL, in processes of their own: after the second iteration's actor has learned and before any save; and
    while the third is being played."""
    places = {"after": 8, "within": 45}
    dying = [
        subprocess.Popen(
            [warm.python(), "-m", "tests.hrl.trainers", str(tmp_path / name), str(model), name, str(number)],
            stderr=subprocess.DEVNULL,
        )
        for name, number in places.items()
    ]
    assert [process.wait(300) for process in dying] == [-signal.SIGKILL] * 2
    folder, whole = undisturbed(BASE)
    assert {name: len(lines(tmp_path / name)) for name in places} == {"after": 1, "within": 2}
    assert {name: (tmp_path / name / LATEST).exists() for name in places} == {"after": False, "within": True}
    for name in places:
        assert trainer_of(model, tmp_path / name).run() == whole, name
        assert lasting(tmp_path / name) == lasting(folder), name


def test_what_was_measured_after_the_checkpoint_is_not_told_twice(
    model: Path, tmp_path: Path, undisturbed: Callable[..., Any]
) -> None:
    """Half a line too."""
    h = replace(SMALL, iterations=3, save_every=9)
    calls = iter(range(99))
    with pytest.raises(Interrupted):
        trainer_of(model, tmp_path, h, stop=lambda: next(calls) == 4).run()
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"iteration":1,"acc/turn1":0.5}\n{"iteration":2,"acc')
    assert trainer_of(model, tmp_path, h).run() == undisturbed(h)[1]
    assert lasting(tmp_path) == lasting(undisturbed(h)[0])


def test_a_kill_between_checkpoints_leaves_the_one_before(
    model: Path, tmp_path: Path, undisturbed: Callable[..., Any]
) -> None:
    """A torn draft, and a whole one without a pointer to it yet, as a power cut leaves them."""
    calls = iter(range(99))
    with pytest.raises(Interrupted):
        trainer_of(model, tmp_path, SMALL, stop=lambda: next(calls) == 5).run()
    (tmp_path / "tmp-checkpoint-11").mkdir()
    (tmp_path / "tmp-checkpoint-11" / checkpoint.STATE_FILE).write_bytes(b"torn")
    (tmp_path / "checkpoint-13").mkdir()
    (tmp_path / "checkpoint-13" / checkpoint.POSITION_FILE).write_text('{"replay": 0}')
    assert trainer_of(model, tmp_path, SMALL).run() == undisturbed(SMALL)[1]


def stopped(model: Path, folder: Path, **options: Any) -> None:
    calls = iter(range(99))
    with pytest.raises(Interrupted):
        trainer_of(model, folder, SMALL, stop=lambda: next(calls) == 6, **options).run()


def test_another_configuration_is_refused_with_one_line(model: Path, tmp_path: Path) -> None:
    stopped(model, tmp_path)
    for change, said in (
        ({"lr": 0.5}, r"hierarchical\.lr=0\.01, asked for is 0\.5"),
        ({"critic": replace(SMALL.critic, tau=0.5)}, r"hierarchical\.critic\.tau=0\.1, .* 0\.5"),
        ({"placement": "full"}, "placement=shared, asked for is full"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            trainer_of(model, tmp_path, replace(SMALL, **change)).run()
        assert "\n" not in str(refused.value)
    other = trainer_of(model, tmp_path, SMALL)
    other.identity["seed"] = 7
    with pytest.raises(InputError, match="made with seed=0, asked for is 7"):
        other.run()
    trainer_of(model, tmp_path, replace(SMALL, save_every=5), micro_batch_size=2).run()


@pytest.mark.parametrize(
    "what, then", [("torn", "checkpoint skipped"), ("gone", "checkpoint skipped"), ("replay", "training restarted")]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_gives_the_same_bits(
    what: str,
    then: str,
    model: Path,
    tmp_path: Path,
    undisturbed: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a segment of the replay buffer no checkpoint is whole: training begins again."""
    stopped(model, tmp_path)
    latest = (tmp_path / LATEST).resolve()
    culprit = latest
    if what == "torn":
        culprit = latest / checkpoint.STATE_FILE
        culprit.write_bytes(culprit.read_bytes()[:-1000])
    elif what == "gone":
        latest.rename(tmp_path / "elsewhere")
    else:
        culprit = next((tmp_path / "replay").iterdir())
        culprit.unlink()
    with caplog.at_level("WARNING"):
        report = trainer_of(model, tmp_path, SMALL).run()
    [line] = [record.getMessage() for record in caplog.records if record.name == "r2v.storage.checkpoint"]
    assert str(culprit) in line and then in line and "\n" not in line
    folder, whole = undisturbed(SMALL)
    assert report == whole and lasting(tmp_path) == lasting(folder)


def test_measurements_that_are_gone_are_named_and_nothing_is_begun_anew(model: Path, tmp_path: Path) -> None:
    stopped(model, tmp_path)
    (tmp_path / METRICS_FILE).unlink()
    with pytest.raises(InputError, match="has 0 bytes") as refused:
        trainer_of(model, tmp_path, SMALL).run()
    assert "\n" not in str(refused.value)


def test_a_file_in_the_way_that_r2v_did_not_make_leaves_the_latest(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 3, {"seed": 0}, {"replay": 0}, {"x": torch.ones(3)})
    (tmp_path / "tmp-checkpoint-4").write_text("a file where a folder is to be")
    with pytest.raises(NotOurs, match="tmp-checkpoint-4: it is a file and no draft of a checkpoint of R2V; it is kept"):
        checkpoint.write(tmp_path, 4, {"seed": 0}, {"replay": 0}, {"x": torch.zeros(3)})
    kept = checkpoint.read(tmp_path, {"seed": 0})
    assert kept is not None and torch.equal(kept["x"], torch.ones(3))


def test_a_state_is_streamed_to_the_disk_and_never_whole_in_memory_a_second_time(tmp_path: Path) -> None:
    size = 16_000_000
    state = {"x": [torch.ones(size // 16) for _ in range(4)]}
    tracemalloc.start()
    try:
        checkpoint.write(tmp_path, 3, {}, {"replay": 0}, state)
        assert tracemalloc.get_traced_memory()[1] < size / 8, "bytes that Python held at once"
    finally:
        tracemalloc.stop()
    assert (tmp_path / "checkpoint-3" / checkpoint.STATE_FILE).stat().st_size > size


def test_a_disk_that_is_full_half_way_is_one_line_and_leaves_the_latest(tmp_path: Path) -> None:
    """In a process of its own, whose files may have no more than a megabyte."""
    code = (
        "import resource, torch; from pathlib import Path; from r2v.errors import EnvironmentFault\n"
        "from r2v.hrl.training import checkpoint\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "checkpoint.write(folder, 3, {}, {'replay': 0}, {'x': torch.ones(3)})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: checkpoint.write(folder, 4, {}, {'replay': 0}, {'x': torch.ones(1 << 20)})\n"
        "except EnvironmentFault as error: print(error)"
    )
    done = subprocess.run([warm.python(), "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("cannot write ") and done.stdout.count("\n") == 1, done
    kept = checkpoint.read(tmp_path, {})
    assert kept is not None and torch.equal(kept["x"], torch.ones(3))


def test_the_last_few_are_kept_and_those_of_a_run_that_was_undone_go(tmp_path: Path) -> None:
    for number in (3, 7, 14, 21):
        checkpoint.write(tmp_path, number, {}, {"replay": 10 * number}, {})
    assert sorted(numbers(tmp_path)) == [14, 21] and checkpoint.oldest(tmp_path, "replay") == 140
    checkpoint.write(tmp_path, 15, {}, {"replay": 150}, {})
    assert sorted(numbers(tmp_path)) == [14, 15] and (tmp_path / LATEST).resolve().name == "checkpoint-15"
    assert json.loads((tmp_path / "checkpoint-15" / checkpoint.POSITION_FILE).read_text()) == {"replay": 150}
    assert checkpoint.read(tmp_path / "elsewhere", {}) is None


def test_a_hash_knows_every_bit_and_no_order() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": [1, "x"]}
    assert hash_of(one) == hash_of({"b": [1, "x"], "a": torch.tensor([1.0, 2.0])})
    for other in (
        {**one, "a": torch.tensor([1.0, 2.0000002])},
        {**one, "a": torch.tensor([[1.0, 2.0]])},
        {**one, "a": torch.tensor([1.0, 2.0]).double()},
        {**one, "b": [1, "y"]},
        {**one, "a": torch.tensor([1.0, 2.0]).bfloat16()},
    ):
        assert hash_of(other) != hash_of(one)
