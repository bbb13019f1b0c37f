"""vLLM without its HTTP server: the engine in one process that answers lines of JSON over a Unix socket.

    PYTHON -m r2v_direct SOCKET --model /models/llama --enable-lora ...

It runs in the engine's own Python, where r2v is not installed. A request is `[number, path, body]`, its answer
`[number, status, content]`: of vLLM's HTTP server, as far as R2V uses them. Tokens are not decoded, and a completion is
one message. The socket appears once the engine is ready; its folder keeps other users out, so there is no key.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

_BASE = "base"
_LONGEST_LINE = 1 << 28
"""Bytes; a prompt of a million tokens takes seven million."""


class DirectEngine:
    """vLLM's engine and the adapters loaded so far, by name."""

    def __init__(self, words: list[str]) -> None:
        vllm, parsers = import_module("vllm"), import_module("vllm.utils.argparse_utils")
        parser = vllm.AsyncEngineArgs.add_cli_args(parsers.FlexibleArgumentParser())
        options = vllm.AsyncEngineArgs.from_cli_args(parser.parse_args(words))
        context = import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER  # batches are as large as its
        self._engine = vllm.AsyncLLMEngine.from_engine_args(options, usage_context=context)
        self._vllm, self._kinds = vllm, import_module("vllm.sampling_params").RequestOutputKind
        self._refusals = (ValueError, import_module("vllm.exceptions").VLLMClientError)
        self._adapters: dict[str, Any] = {}
        self._count = 0

    async def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and content of an answer; the content is a text if the status is not 200."""
        try:
            if path == "/v1/load_lora_adapter":
                await self._load(body["lora_name"], body["lora_path"])
                return 200, None
            if path == "/v1/unload_lora_adapter":
                return 200, self._adapters.pop(body["lora_name"], None) is not None
            if body["model"] != _BASE and body["model"] not in self._adapters:
                return 404, f"the model {body['model']} does not exist"
            return 200, await (self._complete(body) if path == "/v1/completions" else self._embed(body))
        except self._refusals as error:
            return 400, str(error)
        except Exception as error:  # the request failed, not the connection: R2V asks again
            if self._engine.errored:
                print(f"{type(error).__name__}: {error}", flush=True)
                os._exit(1)  # workers are killed by the launcher
            return 500, str(error)

    async def _load(self, name: str, folder: str) -> None:
        if name not in self._adapters:
            self._count += 1
            adapter = import_module("vllm.lora.request").LoRARequest(name, self._count, folder)
            await self._engine.add_lora(adapter)
            self._adapters[name] = adapter

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        params = self._vllm.SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            logprobs=body["logprobs"],
            stop_token_ids=body["stop_token_ids"],
            extra_args=body["vllm_xargs"],
            detokenize=False,
            output_kind=self._kinds.FINAL_ONLY,
        )
        (choice,) = (await self._last(self._engine.generate, body["prompt"], params, body["model"])).outputs
        rows = [{f"token_id:{token}": v.logprob for token, v in row.items()} for row in choice.logprobs or ()]
        return {"choices": [{"token_ids": list(choice.token_ids), "logprobs": {"top_logprobs": rows}}]}

    async def _embed(self, body: dict[str, Any]) -> Any:
        params = self._vllm.PoolingParams(task="embed")
        return (await self._last(self._engine.encode, body["input"], params, body["model"])).outputs.data.tolist()

    async def _last(self, ask: Any, prompt: list[int], params: Any, model: str) -> Any:
        """Return the last of the outputs that `ask` yields for a prompt of token ids."""
        self._count += 1
        tokens = {"type": "token", "prompt_token_ids": prompt}
        outputs = ask(tokens, params, str(self._count), lora_request=self._adapters.get(model))
        return [output async for output in outputs][-1]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, each as soon as it is ready; they end with the connection."""

        async def reply(number: int, path: str, body: dict[str, Any]) -> None:
            writer.write(json.dumps([number, *await self.answer(path, body)]).encode() + b"\n")

        tasks: set[asyncio.Task[None]] = set()
        with suppress(ConnectionError):  # R2V closed it with answers on their way
            while line := await reader.readline():
                task = asyncio.create_task(reply(*json.loads(line)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        for task in tasks:
            task.cancel()
        writer.close()


async def serve(path: str, words: list[str]) -> None:
    """Load the engine, then answer on the socket until the process ends."""
    engine = DirectEngine(words)
    server = await asyncio.start_unix_server(engine.connected, path, limit=_LONGEST_LINE)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
