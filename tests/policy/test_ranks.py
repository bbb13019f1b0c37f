"""B-4, B-5 and B-6 of the method on two processes that train together (gloo, on a CPU), and the rows of an update."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from safetensors.torch import load_file
from torch.utils.data import BatchSampler, SequentialSampler

from r2v.distributed import cut, launch
from r2v.policy.training.fit import pad_for_ranks
from r2v.storage.files import content_sha256
from tests import trust

from . import two_ranks
from .two_ranks import CASES_IN_PARTS, Case

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("warm_ranks")]

PHASES = ("bc", "preference")
CASES = CASES_IN_PARTS if trust.whole_suites else [CASES_IN_PARTS[0], CASES_IN_PARTS[-1]]
"""Full weights cloned, and preferences over adapters on 4 bits; the cases between with --whole-suites."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of both phases, trained by two ranks: once, again, and resumed after a kill."""
    folder = tmp_path_factory.mktemp("ranks")
    launch(2, "-m", two_ranks.__name__, "everything", str(folder))
    return folder


def _final(folder: Path) -> dict[str, str]:
    return {path.name: content_sha256(path) for path in sorted((folder / "final").iterdir())}


def _far_apart(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float:
    assert len(one) == len(other) and all(any(g.abs().max() > 1e-3 for g in update.values()) for update in one)
    return max(
        float((a[name] - b[name]).norm() / a[name].norm().clamp(min=1e-9))
        for a, b in zip(one, other, strict=True)
        for name in a
    )


@pytest.mark.parametrize("what", PHASES)
def test_two_ranks_have_the_gradient_of_one_with_twice_the_batch(what: str, folder: Path, tmp_path: Path) -> None:
    """The gradients of every update, the short last one too, agree in float64 to 1e-5 relative."""
    together = torch.load(folder / f"{what}.pt")
    alone = two_ranks.gradients(what, tmp_path)
    assert len(alone) == 3 and _far_apart(alone, together) < 1e-5


@pytest.mark.parametrize("what", PHASES)
def test_how_a_batch_is_cut_changes_no_gradient(what: str, tmp_path: Path) -> None:
    """Micro-batches of 3 rows: uneven ones, and rows and tokens weigh the same in each."""
    cut_up = replace(two_ranks.PHASE, batch_size=3, gradient_accumulation_steps=4)
    in_one = replace(two_ranks.PHASE, batch_size=12, gradient_accumulation_steps=1)
    assert (
        _far_apart(
            two_ranks.gradients(what, tmp_path / "one", in_one), two_ranks.gradients(what, tmp_path / "cut", cut_up)
        )
        < 1e-5
    )


@pytest.mark.parametrize("what", PHASES)
def test_two_ranks_give_the_same_adapter_twice_and_after_a_kill(what: str, folder: Path) -> None:
    once, twice, killed = json.loads((folder / "reports.json").read_text())[what]
    assert once == twice == killed and once["weights_sha256"]
    assert _final(folder / f"{what}-once") == _final(folder / f"{what}-twice") == _final(folder / f"{what}-killed")


@pytest.mark.parametrize("what", PHASES)
def test_two_ranks_end_where_one_does(what: str, folder: Path, tmp_path: Path) -> None:
    together = json.loads((folder / "reports.json").read_text())[what][0]
    alone = two_ranks.train(what, tmp_path, lora=4)
    series = "losses" if what == "bc" else "log"
    assert [one["loss"] for one in alone[series]] == pytest.approx([one["loss"] for one in together[series]], abs=1e-4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rows", [1, 7, 24, 41, 96])
def test_an_update_sees_the_same_rows_for_any_number_of_ranks(rows: int, ranks: int) -> None:
    """Through the trainer's own sampler; every rank has as many micro-batches, on several all of one size."""
    phase = replace(two_ranks.PHASE, batch_size=12, gradient_accumulation_steps=2)
    micro, steps = cut(12, 2, ranks)
    laid = pad_for_ranks(range(rows), phase, ranks)
    batches = BatchSampler(SequentialSampler(laid), micro, drop_last=False)
    shards = [BatchSamplerShard(batches, ranks, rank) for rank in range(ranks)] if ranks > 1 else [batches]
    own = [[[laid[i] for i in batch] for batch in shard] for shard in shards]
    assert len({len(batches) for batches in own}) == 1
    assert ranks == 1 or all(len(batch) == micro for batches in own for batch in batches)
    for update in range(-(-rows // 24)):
        seen = [row for batches in own for batch in batches[update * steps : (update + 1) * steps] for row in batch]
        assert sorted(row for row in seen if row is not None) == list(range(rows))[update * 24 : (update + 1) * 24]


def test_weights_in_parts_come_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO 3 on two ranks: the same losses, and the exported weights are complete and the same; nothing is compiled."""
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "compiled"))
    launch(2, "-m", two_ranks.__name__, "in_parts", str(tmp_path))
    assert not (tmp_path / "compiled").exists()
    for what, lora, series, file in (("bc", 0, "losses", "model"), ("preference", 4, "log", "adapter_model")):
        alone, parts = (
            two_ranks.train(what, tmp_path / f"{what}-alone", lora),
            json.loads((tmp_path / f"{what}.json").read_text()),
        )
        assert [one["loss"] for one in parts[series]] == pytest.approx([one["loss"] for one in alone[series]], abs=1e-4)
        weights = [load_file(tmp_path / name / "final" / f"{file}.safetensors") for name in (f"{what}-alone", what)]
        assert weights[0].keys() == weights[1].keys()
        for name in weights[0]:
            torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train every case by two ranks under FSDP2, on a base that one of them has read."""
    folder = tmp_path_factory.mktemp("sharded")
    two_ranks.save_base(folder / two_ranks.BASE)
    launch(2, "-m", two_ranks.__name__, "under_fsdp", str(folder), *(case.name for case in CASES))
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weights_under_fsdp_train_as_whole_ones_do(case: Case, sharded: Path) -> None:
    """FSDP2 on two gloo ranks, read by one of them and half held by each: the losses of one process up to rounding in
    float32 sums, the same exported weights, and the same after a kill; adapters on a 4-bit base too."""
    series = "losses" if case.what == "bc" else "log"
    once, killed, parts = json.loads((sharded / f"{case.name}.json").read_text())
    model = two_ranks.read_base(sharded / two_ranks.BASE, case)
    alone = two_ranks.train(case.what, sharded / f"{case.name}-alone", model=model)
    near = 4 * torch.finfo(torch.bfloat16).eps if case.in_4bit else 1e-4  # of losses up to 4
    assert [one["loss"] for one in once[series]] == pytest.approx([one["loss"] for one in alone[series]], abs=near)
    assert [one["loss"] for one in killed[series]] == [one["loss"] for one in once[series]]
    assert parts[case.name] < 0.7, "a rank holds its part of the weights, and what is too small to be cut"
    file = "adapter_model" if case.lora else "model"
    weights = [
        load_file(sharded / where / "final" / f"{file}.safetensors") for where in (f"{case.name}-alone", case.name)
    ]
    assert weights[0].keys() == weights[1].keys()
    for one, other in ((weights[0][key], weights[1][key]) for key in weights[0]):
        if case.in_4bit:  # TRL trains in bfloat16 there, whose last bit is more than 1e-4
            assert one.dtype == other.dtype == torch.bfloat16
            assert (one - other).float().norm() <= 4 * torch.finfo(one.dtype).eps * one.float().norm()
        else:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
