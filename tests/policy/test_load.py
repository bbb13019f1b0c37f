"""Loading by name and exporting: an exported model loads again, and refusals are one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from r2v.config import PolicyConfig
from r2v.errors import InputError, UsageError
from r2v.memory.models import counted
from r2v.policy.export import export, weights_sha256
from r2v.policy.load import Loaded, load_policy
from r2v.storage.weights import BUNDLED
from tests import tiny_models, tolerance

pytestmark = pytest.mark.numerical

IDS = torch.tensor([[5, 9, 11, 30, 7]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "base"
    tokenizer = tiny_models.tokenizer()
    export(Loaded(model=tiny_models.model(len(tokenizer), 0, torch.float32), tokenizer=tokenizer, name="base"), folder)
    return folder


def _logits(loaded: Loaded) -> Any:
    with torch.no_grad():
        return loaded.model(IDS).logits


def test_an_export_comes_back_as_it_was(base: Path, tmp_path: Path) -> None:
    loaded = load_policy(PolicyConfig(model_name=str(base), dtype="float64", device="cpu"))
    original = tiny_models.model(len(tiny_models.tokenizer()), 0, torch.float64)
    expected = original(IDS).logits
    # transformers' norms round to float32 in a float64 model too; those of a model loaded here do not
    near = tolerance.of_logits(original, expected, torch.float32)
    torch.testing.assert_close(_logits(loaded), expected, rtol=0, atol=near)
    assert loaded.tokenizer("open w3")["input_ids"] == tiny_models.tokenizer()("open w3")["input_ids"]
    assert loaded.tokenizer.chat_template == tiny_models.TEMPLATE
    again = load_policy(PolicyConfig(model_name=str(base), device="cpu"), for_training=True)
    assert export(again, tmp_path / "again") == weights_sha256(base)


def test_tied_weights_are_written_once(base: Path) -> None:
    from safetensors import safe_open

    with safe_open(base / "model.safetensors", "pt") as tensors:
        names = list(tensors.keys())
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names


def test_dtype_while_acting_and_in_training(base: Path) -> None:
    policy = PolicyConfig(model_name=str(base), dtype="float64", device="cpu")
    acting, training = load_policy(policy), load_policy(policy, for_training=True)
    assert acting.model.dtype == torch.float64 and training.model.dtype == torch.float32
    assert not any(p.requires_grad for p in acting.model.parameters()) and not acting.model.training
    assert all(p.requires_grad for p in training.model.parameters())


@pytest.mark.parametrize("name", list(BUNDLED))
def test_a_bundled_model_acts_in_double_and_trains_in_single(name: str) -> None:
    policy = PolicyConfig(model_name=name, lora_r=2, device="cpu")
    acting, training = load_policy(policy), load_policy(policy, for_training=True)
    assert acting.model.dtype == torch.float64 and training.model.dtype == torch.float32
    assert acting.model.num_parameters() < 500_000 and acting.tokenizer.chat_template
    assert {type(layer).__name__ for layer in acting.model.modules() if type(layer).__name__.endswith("Norm")} == {
        "RMSNorm"
    }


def test_lora_r_reaches_the_adapter_and_the_adapter_comes_back(base: Path, tmp_path: Path) -> None:
    policy = PolicyConfig(model_name=str(base), lora_r=3, dtype="float32", device="cpu")
    loaded = load_policy(policy, for_training=True, seed=5)
    assert (loaded.model.peft_config["default"].r, loaded.model.peft_config["default"].lora_alpha) == (3, 6)
    with torch.no_grad():
        for name, weight in loaded.model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.05)
    sha = export(loaded, tmp_path / "final")
    assert {p.name for p in (tmp_path / "final").iterdir()} >= {"adapter_model.safetensors", "adapter_config.json"}
    assert not (tmp_path / "final" / "model.safetensors").exists()
    acting = load_policy(policy, tmp_path / "final")
    wanted = _logits(Loaded(model=loaded.model.eval(), tokenizer=None, name=""))
    near = tolerance.of_logits(acting.model, wanted, torch.float32)
    torch.testing.assert_close(_logits(acting), wanted, rtol=0, atol=near)
    trainable = load_policy(policy, tmp_path / "final", for_training=True)
    assert {n.split(".")[-3] for n, p in trainable.model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}
    assert export(trainable, tmp_path / "again") == sha


def adapters_on(name: str, folder: Path) -> Any:
    """Return the logits of a model with random adapters, which are then exported."""
    loaded = load_policy(PolicyConfig(model_name=name, lora_r=2, device="cpu"), for_training=True)
    with torch.no_grad():
        for path, weight in loaded.model.named_parameters():
            if "lora_B" in path:
                weight.fill_(0.05)
    export(loaded, folder)
    return _logits(Loaded(model=loaded.model.eval(), tokenizer=None, name=""))


def test_a_folder_of_adapters_is_a_model_by_name(base: Path, tmp_path: Path) -> None:
    """On a bundled base, a directory's, and such a folder's: loaded with the adapters merged in, for further
    training."""
    for name, below in (("toy", "toy"), (str(base), str(base)), (str(tmp_path / "toy"), "toy")):
        folder = tmp_path / Path(name).name if name != str(tmp_path / "toy") else tmp_path / "second"
        wanted = adapters_on(name, folder)
        policy = PolicyConfig(model_name=str(folder), device="cpu")
        for loaded in (load_policy(policy), load_policy(policy, for_training=True)):
            assert not hasattr(loaded.model, "peft_config") and loaded.tokenizer.chat_template
            near = tolerance.of_logits(loaded.model, wanted, torch.float32)
            torch.testing.assert_close(_logits(loaded).float(), wanted.float(), rtol=0, atol=near)
        assert load_policy(policy).model.dtype == load_policy(PolicyConfig(model_name=below, device="cpu")).model.dtype
        assert load_policy(replace(policy, dtype="bfloat16")).model.dtype == torch.bfloat16
        assert counted(str(folder)) == counted(below)


def test_adapters_that_cannot_be_merged_are_refused(base: Path, tmp_path: Path) -> None:
    adapters_on(str(base), tmp_path / "adapters")
    policy = PolicyConfig(model_name=str(tmp_path / "adapters"), load_in_4bit=True, device="cpu")
    with pytest.raises(UsageError, match=r"load_in_4bit=true: .*adapters holds adapters, which cannot be merged"):
        load_policy(policy)
    (tmp_path / "adapters" / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"cannot load .*adapters \(") as refused:
        load_policy(PolicyConfig(model_name=str(tmp_path / "adapters"), device="cpu"))
    assert "\n" not in str(refused.value)
    (tmp_path / "adapters" / "adapter_config.json").write_text("[]")
    with pytest.raises(InputError, match=r"adapter_config.json: names no base model \(.*r2v or peft has written"):
        load_policy(PolicyConfig(model_name=str(tmp_path / "adapters"), device="cpu"))


def test_adapters_start_where_the_seed_says(base: Path, tmp_path: Path) -> None:
    policy = PolicyConfig(model_name=str(base), lora_r=3, device="cpu")
    shas = []
    for i, seed in enumerate((5, 5, 6)):
        torch.manual_seed(i)
        shas.append(export(load_policy(policy, for_training=True, seed=seed), tmp_path / str(i)))
    assert shas[0] == shas[1] != shas[2]


def test_nothing_of_the_place_is_written(base: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        text = (base / name).read_text()
        assert str(base) not in text and "transformers_version" not in text and "name_or_path" not in text


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        ({"model_name": "/nowhere/model"}, InputError, "no such directory"),
        ({"model_name": "tiny", "load_in_4bit": True}, UsageError, "load_in_4bit=true: a bundled model"),
        ({"model_name": "toy", "load_in_4bit": True}, UsageError, "load_in_4bit=true: a bundled model"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(policy: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as refused:
        load_policy(PolicyConfig(**policy))
    assert "\n" not in str(refused.value)


def test_a_4bit_base_that_has_been_measured_passes_gradients_on(base: Path) -> None:
    """bitsandbytes packs weights that are read in evaluation mode on some processors, and has no gradient for packed
    weights."""
    pytest.importorskip("bitsandbytes")
    policy = PolicyConfig(model_name=str(base), lora_r=2, load_in_4bit=True, device="cpu")
    fresh, measured = (load_policy(policy, for_training=True) for _ in range(2))
    measured.model.eval()
    _logits(measured)
    gradients = []
    for loaded in (fresh, measured):
        loaded.model.train()
        loaded.model(IDS, labels=IDS).loss.backward()
        gradients.append([w.grad for w in loaded.model.parameters() if w.requires_grad])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_4bit_without_adapters_is_refused_for_training_and_auto_gives_way(base: Path) -> None:
    with pytest.raises(UsageError, match="policy.lora_r is 0"):
        load_policy(PolicyConfig(model_name=str(base), load_in_4bit=True, device="cpu"), for_training=True)
    given = load_policy(PolicyConfig(model_name=str(base), load_in_4bit="auto", device="cpu"), for_training=True)
    assert given.model.dtype == torch.float32


def test_a_model_that_is_not_downloaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="cannot load nobody/no-such-model"):
        load_policy(PolicyConfig(model_name="nobody/no-such-model"))


def test_a_quantized_model_is_refused_where_it_is_loaded_too(base: Path, tmp_path: Path) -> None:
    """A model of the hub may have been downloaded by the load itself."""
    values = json.loads((base / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(UsageError, match=r"its config.json has a quantization_config \(awq\)"):
        load_policy(PolicyConfig(model_name=str(tmp_path), device="cpu"))


def test_missing_or_unlike_weights_are_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_policy(PolicyConfig(model_name=str(base)), tmp_path / "gone")
    with pytest.raises(UsageError, match="holds full weights, but policy.lora_r=4"):
        load_policy(PolicyConfig(model_name=str(base), lora_r=4), base, for_training=True)


def test_a_token_beyond_the_embedding_is_refused_at_load(tmp_path: Path) -> None:
    tokenizer = tiny_models.tokenizer()
    rows = len(tokenizer) - 1
    export(Loaded(model=tiny_models.model(rows, 0, torch.float32), tokenizer=tokenizer, name="base"), tmp_path / "m")
    with pytest.raises(InputError, match=f"with id {rows}, its embedding {rows} rows.*resize"):
        load_policy(PolicyConfig(model_name=str(tmp_path / "m"), device="cpu"))
