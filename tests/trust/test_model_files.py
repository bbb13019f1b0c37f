"""A third party's model: for any contents of its files, it loads unchanged or is refused in one line that names it;
none of its code runs, and no tensor is invented."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from r2v.config import CriticConfig, PolicyConfig
from r2v.errors import EnvironmentFault, InputError
from r2v.hrl.models.encoders import _encoder, _tokenizer
from r2v.policy.load import device_of, load_policy, load_tokenizer
from r2v.policy.prompt_encoder import Encoder
from r2v.signals import time_limit
from r2v.storage.weights import ADAPTERS, base_of, readable_model
from r2v.verifier.model import SETTINGS, VerifierModel
from r2v.verifier.model import WEIGHTS as HEAD
from r2v.verifier.model import load as load_verifier
from r2v.verifier.model import save as save_verifier
from tests import tiny_models

WEIGHTS = "model.safetensors"
Alter = Callable[[Path], object]


class Payload:
    """A pickle that leaves a file where it is run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    words = tiny_models.tokenizer()
    tiny_models.model(len(words), dtype=torch.float32).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Alter:
    def alter(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        change(held)
        save_file(held, folder / WEIGHTS, metadata={"format": "pt"})

    return alter


def settings(**changes: Any) -> Alter:
    def alter(folder: Path) -> None:
        held = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**held, **changes}))

    return alter


def text(name: str, content: str) -> Alter:
    return lambda folder: (folder / name).write_text(content)


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Payload(folder / "PWNED")}))


def own_base(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / ADAPTERS).write_text(json.dumps({"base_model_name_or_path": str(folder), "peft_type": "LORA"}))


def first(held: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(held) if "layers.0" in name and held[name].dim() == 2)


REFUSED: dict[str, tuple[Alter, str]] = {
    "weights cut": (lambda folder: os.truncate(folder / WEIGHTS, 1000), "invalid header length"),
    "weights cut late": (lambda folder: os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 9), ""),
    "weights that are garbage": (text(WEIGHTS, "garbage" * 99), "header"),
    "empty weights": (text(WEIGHTS, ""), "header"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "no file named model.safetensors"),
    "weights that are a folder": (lambda folder: ((folder / WEIGHTS).unlink(), (folder / WEIGHTS).mkdir()), ""),
    "a tensor missing": (tensors(lambda held: held.pop(first(held))), "in its weights"),
    "a tensor of another shape": (tensors(lambda held: held.update({first(held): torch.zeros(3, 3)})), "other shapes"),
    "a tensor of NaN": (tensors(lambda held: held[first(held)].fill_(torch.nan)), "holds NaN or infinite weights"),
    "one infinity": (tensors(lambda held: held[first(held)].view(-1)[:1].fill_(torch.inf)), "holds NaN or infinite"),
    "a pickle with a payload": (pickled, "a pickle"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "model_type"),
    "config garbage": (text("config.json", "garbage"), "not a valid JSON"),
    "config a list": (text("config.json", "[]"), "model_type"),
    "config null": (text("config.json", "null"), "cannot load"),
    "config empty": (text("config.json", "{}"), "model_type"),
    "config deep": (text("config.json", '{"a":' * 100_000), "RecursionError"),
    "config not UTF-8": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{}"), "cannot load"),
    "a negative size": (settings(hidden_size=-3), "cannot load"),
    "a size that is text": (settings(hidden_size="x"), "hidden_size"),
    "no heads": (settings(num_attention_heads=0), "cannot load"),
    "another size": (settings(hidden_size=48), "other shapes"),
    "another vocabulary": (settings(vocab_size=3), "other shapes"),
    "layers beyond the weights": (
        settings(num_hidden_layers=10**4, layer_types=["conv"] * 10**4, intermediate_size=10**6),
        "parameters, its weights are",
    ),
    "a width beyond the weights": (settings(hidden_size=10**9), "parameters, its weights are"),
    "a vocabulary beyond the weights": (settings(vocab_size=10**10), "parameters, its weights are"),
    "a size beyond numbers": (settings(hidden_size=10**400), "cannot load"),
    "an unknown kind": (settings(model_type="nonsense"), "nonsense"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "cannot load"),
    "tokenizer garbage": (text("tokenizer.json", "garbage"), "cannot load"),
    "tokenizer without its keys": (text("tokenizer.json", "{}"), "cannot load"),
    "tokenizer a list": (text("tokenizer.json", "[]"), "cannot load"),
    "adapters that are their own base": (own_base, "their own base"),
    "adapters without a base": (
        lambda folder: ((folder / "config.json").unlink(), (folder / ADAPTERS).write_text("{}")),
        "names no base model",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_or_hostile_model_is_refused_in_one_line(name: str, base: Path, tmp_path: Path) -> None:
    alter, words = REFUSED[name]
    folder = shutil.copytree(base, tmp_path / "m")
    alter(folder)
    with pytest.raises(InputError) as refusal:
        load_policy(PolicyConfig(model_name=str(folder), device="cpu"))
    line = str(refusal.value)
    assert words in line and str(folder) in line and "\n" not in line and len(line) < 700
    assert not (folder / "PWNED").exists()


def test_code_that_a_model_brings_along_is_not_run(base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base, tmp_path / "m")
    folder.joinpath("evil" + ".py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\nclass Evil: pass\n")
    settings(auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"})(folder)
    load_policy(PolicyConfig(model_name=str(folder), device="cpu"))
    settings(model_type="evil")(folder)
    with pytest.raises(InputError):
        load_policy(PolicyConfig(model_name=str(folder), device="cpu"))
    assert not (tmp_path / "PWNED").exists()


def adapted(base: Path, folder: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    loaded = load_policy(PolicyConfig(model_name=str(base), device="cpu"))
    get_peft_model(loaded.model, LoraConfig(r=2, target_modules="all-linear")).save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


ADAPTER_FILE = "adapter_model.safetensors"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
"""A chat template without an end, in practice."""


def adapter_settings(**changes: Any) -> Alter:
    def alter(folder: Path) -> None:
        held = json.loads((folder / ADAPTERS).read_text())
        (folder / ADAPTERS).write_text(json.dumps({**held, **changes}))

    return alter


@pytest.mark.parametrize("alter", [text("chat_template.jinja", LOOPS), adapter_settings(target_modules="(.+)+z")])
@pytest.mark.filterwarnings("ignore")
def test_a_model_folder_that_computes_without_end_is_refused(alter: Alter, base: Path, tmp_path: Path) -> None:
    folder = adapted(base, tmp_path / "adapters")
    alter(folder)
    policy = PolicyConfig(model_name=str(folder), device="cpu")
    with pytest.raises(InputError, match="no end"), time_limit(0.2, "no end"):  # of this test, before that of loading
        Encoder.of(load_policy(policy).tokenizer, policy, reserve=64)


@pytest.mark.filterwarnings("ignore")
def test_a_tokenizer_that_panics_is_refused(base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(base, tmp_path / "m")
    held = json.loads((folder / "tokenizer.json").read_text())
    held["normalizer"] = {"type": "Replace", "pattern": {"Regex": "((.+)+)+z"}, "content": "x"}
    (folder / "tokenizer.json").write_text(json.dumps(held))
    policy = PolicyConfig(model_name=str(folder), device="cpu")
    with pytest.raises(InputError, match="cannot use its tokenizer .*retry-limit") as refusal:
        Encoder.of(load_tokenizer(policy), policy, reserve=64)
    assert str(folder) in str(refusal.value) and "\n" not in str(refusal.value)


def test_adapters_of_a_rank_beyond_their_weights_are_refused(base: Path, tmp_path: Path) -> None:
    folder = adapted(base, tmp_path / "adapters")
    adapter_settings(r=10**9)(folder)
    with pytest.raises(InputError, match="asks for r=1000000000, beyond its weights"):
        load_policy(PolicyConfig(model_name=str(folder), device="cpu"))


def test_out_of_memory_names_the_model_that_was_loaded() -> None:
    with pytest.raises(MemoryError) as raised, readable_model("policy.model_name: cannot load m", "name another"):
        raise MemoryError
    assert "cannot load m; take a smaller model" in raised.value.__notes__[0]


def cut_adapters(folder: Path) -> None:
    os.truncate(folder / ADAPTER_FILE, 500)


def lacking(folder: Path) -> None:
    held = load_file(folder / ADAPTER_FILE)
    held.pop(sorted(held)[0])
    save_file(held, folder / ADAPTER_FILE)


def not_finite(folder: Path) -> None:
    held = load_file(folder / ADAPTER_FILE)
    held[sorted(held)[0]].fill_(torch.nan)
    save_file(held, folder / ADAPTER_FILE)


@pytest.mark.parametrize("alter", [cut_adapters, lacking, not_finite])
@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_damaged_adapters_are_refused(alter: Alter, by_name: bool, base: Path, tmp_path: Path) -> None:
    folder = adapted(base, tmp_path / "adapters")
    policy = PolicyConfig(model_name=str(folder if by_name else base), lora_r=2, device="cpu")
    weights = None if by_name else folder
    assert load_policy(policy, weights).name == policy.model_name
    alter(folder)
    with pytest.raises(InputError, match="cannot load .*adapters"):
        load_policy(policy, weights)


VERIFIERS: dict[str, tuple[Alter, str]] = {
    "cut": (lambda folder: os.truncate(folder / HEAD, 20), "header"),
    "settings garbage": (text(SETTINGS, "garbage"), "Expecting value"),
    "settings a list": (text(SETTINGS, "[]"), "not a verifier"),
    "settings null": (text(SETTINGS, "null"), "not a verifier"),
    "no temperature": (text(SETTINGS, "{}"), "temperature"),
    "temperature NaN": (text(SETTINGS, '{"temperature": NaN}'), "temperature nan"),
    "temperature 0": (text(SETTINGS, '{"temperature": 0}'), "temperature 0"),
    "no settings": (lambda folder: (folder / SETTINGS).unlink(), SETTINGS),
    "a stranger's tensors": (lambda folder: save_file({"x": torch.zeros(2)}, folder / HEAD), "(x)"),
    "no head": (lambda folder: save_file({}, folder / HEAD), "no head"),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_damaged_verifier_is_refused(name: str, base: Path, tmp_path: Path) -> None:
    alter, words = VERIFIERS[name]

    def backbone() -> Any:
        return load_policy(PolicyConfig(model_name=str(base), device="cpu"), for_training=True).model.model

    trained = VerifierModel(backbone())
    save_verifier(trained, tmp_path)
    load_verifier(tmp_path, backbone())
    alter(tmp_path)
    with pytest.raises(InputError) as refusal:
        load_verifier(tmp_path, backbone())
    assert words in str(refusal.value) and str(tmp_path) in str(refusal.value)


def test_an_encoder_with_a_tensor_missing_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    shape = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(shape, add_pooling_layer=False).save_pretrained(tmp_path)
    assert _encoder(CriticConfig(model_name=str(tmp_path)).model_name).config.hidden_size == 16
    tensors(lambda held: held.pop("embeddings.word_embeddings.weight"))(tmp_path)
    with pytest.raises(InputError, match="hierarchical.critic.model_name=.*no embeddings.word_embeddings.weight"):
        _encoder(str(tmp_path))
    with pytest.raises(InputError, match="hierarchical.critic.model_name=.*cannot load it"):
        _tokenizer(str(tmp_path))


def test_a_device_that_is_not_here_is_the_environments_fault() -> None:
    with pytest.raises(EnvironmentFault, match=r"policy.device=cuda:99: torch sees \d+ GPUs here"):
        device_of(PolicyConfig(device="cuda:99"))


def test_an_adapters_note_of_its_base_may_be_anything(tmp_path: Path) -> None:
    for content in ("", "[]", "null", '{"a":' * 100_000, "{}"):
        (tmp_path / ADAPTERS).write_text(content)
        with pytest.raises(InputError, match="names no base model"):
            base_of(tmp_path)
