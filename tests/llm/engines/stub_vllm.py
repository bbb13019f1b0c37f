"""A stand-in for vLLM's package: the little of its engine that `r2v.llm.engines.direct` uses.

Its completions and hidden states, and its options, are those of the stand-in for the HTTP server (`stub_server`), which
lies beside it as `vllm.entrypoints.openai.api_server`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MODULES = ("exceptions", "lora.request", "sampling_params", "usage.usage_lib", "utils.argparse_utils")
for place in ("lora", "usage", "utils", *MODULES):
    sys.modules[f"vllm.{place}"] = sys.modules[__name__]


def stub() -> Any:
    return importlib.import_module("vllm.entrypoints.openai.api_server")


class VLLMClientError(Exception):
    pass


class RequestOutputKind(Enum):
    FINAL_ONLY = 2


class UsageContext(Enum):
    OPENAI_API_SERVER = "OPENAI_API_SERVER"


class SamplingParams(SimpleNamespace):
    pass


class PoolingParams(SimpleNamespace):
    pass


class LoRARequest:
    def __init__(self, lora_name: str, lora_int_id: int, lora_path: str) -> None:
        self.lora_name, self.lora_int_id, self.lora_path = lora_name, lora_int_id, lora_path


class FlexibleArgumentParser:
    def parse_args(self, words: list[str]) -> list[str]:
        return words


class AsyncEngineArgs:
    @staticmethod
    def add_cli_args(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
        return parser

    @staticmethod
    def from_cli_args(words: list[str]) -> list[str]:
        return words


class AsyncLLMEngine:
    errored = False

    def __init__(self) -> None:
        self.count, self.numbers = 0, set[int]()

    @classmethod
    def from_engine_args(cls, words: list[str], usage_context: UsageContext) -> AsyncLLMEngine:
        if not stub().begin(words):
            raise SystemExit
        return cls()

    async def add_lora(self, adapter: LoRARequest) -> None:
        assert adapter.lora_int_id not in self.numbers, "two adapters with one number"
        self.numbers.add(adapter.lora_int_id)
        if not Path(adapter.lora_path, "adapter_config.json").exists():
            raise RuntimeError("no adapter there")

    async def generate(
        self, prompt: Any, params: Any, request_id: str, lora_request: LoRARequest | None = None
    ) -> AsyncIterator[Any]:
        assert not params.detokenize and params.output_kind is RequestOutputKind.FINAL_ONLY and not params.temperature
        model, ids = self._asked(prompt, lora_request)
        body = {"prompt": ids, "max_tokens": params.max_tokens, "vllm_xargs": params.extra_args}
        (choice,) = stub().answer(model, body | {"logprobs": params.logprobs})["choices"]
        figures = None
        if choice["logprobs"]:
            figures = [
                {int(name.partition(":")[2]): SimpleNamespace(logprob=value) for name, value in row.items()}
                for row in choice["logprobs"]["top_logprobs"]
            ]
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(choice["token_ids"]), logprobs=figures)])

    async def encode(
        self, prompt: Any, params: Any, request_id: str, lora_request: LoRARequest | None = None
    ) -> AsyncIterator[Any]:
        assert params.task == "embed"
        values = stub().hidden_state(*self._asked(prompt, lora_request))
        yield SimpleNamespace(outputs=SimpleNamespace(data=SimpleNamespace(tolist=lambda: values)))

    def _asked(self, prompt: Any, adapter: LoRARequest | None) -> tuple[str, list[int]]:
        ids = prompt["prompt_token_ids"]
        if prompt["type"] != "token" or len(ids) > stub().room():
            raise VLLMClientError("This model's maximum context length is less.")
        self.count += 1
        stub().die_once(self.count)
        return "base" if adapter is None else adapter.lora_name, ids
