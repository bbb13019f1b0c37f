"""vLLM without its HTTP server: the engine in one process that answers lines of JSON over a Unix socket.

    PYTHON -m r2v_direct SOCKET --model /models/llama --enable-lora ...

It runs in the engine's own Python, where r2v is not installed. A request is `[number, path, body]` and its answer
`[number, status, content]`, with the paths, bodies and contents of vLLM's HTTP server as far as R2V uses them. Tokens
are not decoded, and nothing is sent before a completion has ended. The socket appears once the engine is ready; its
folder keeps other users out, so there is no key.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

_BASE = "base"
_LONGEST_LINE = 1 << 28
"""Bytes; a prompt of a million tokens takes seven million."""


class DirectEngine:
    """vLLM's engine and the adapters loaded so far, by name."""

    def __init__(self, words: list[str]) -> None:
        arguments, parsers = _vllm("engine.arg_utils").AsyncEngineArgs, _vllm("utils.argparse_utils")
        parser = arguments.add_cli_args(parsers.FlexibleArgumentParser())
        options = arguments.from_cli_args(parser.parse_args(words))
        self._engine = _vllm("v1.engine.async_llm").AsyncLLM.from_engine_args(options)
        self._sampling, self._pooling = _vllm("sampling_params"), _vllm("pooling_params")
        self._refusals = (ValueError, _vllm("exceptions").VLLMClientError)
        self._adapters: dict[str, Any] = {}
        self._count = 0

    async def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and content of an answer; the content is a text if the status is not 200."""
        try:
            if path == "/health":
                return 200, await self._engine.check_health()
            if path == "/v1/load_lora_adapter":
                return await self._load(body["lora_name"], body["lora_path"])
            if path == "/v1/unload_lora_adapter":
                return (200, None) if self._adapters.pop(body["lora_name"], None) else (404, "no such adapter")
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

    async def _load(self, name: str, folder: str) -> tuple[int, Any]:
        if name in self._adapters:
            return 200, None
        self._count += 1
        adapter = _vllm("lora.request").LoRARequest(name, self._count, folder)
        try:
            await self._engine.add_lora(adapter)
        except Exception as error:  # vLLM raises errors of its loader and of the files as they come
            return 400, str(error)
        self._adapters[name] = adapter
        return 200, None

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        params = self._sampling.SamplingParams(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            logprobs=body["logprobs"],
            stop_token_ids=body["stop_token_ids"],
            extra_args=body["vllm_xargs"],
            detokenize=False,
            output_kind=self._sampling.RequestOutputKind.FINAL_ONLY,
        )
        output = await self._last(self._engine.generate, body["prompt"], params, body["model"])
        (choice,) = output.outputs
        figures = None
        if choice.logprobs is not None:
            rows = [{f"token_id:{token}": v.logprob for token, v in row.items()} for row in choice.logprobs]
            figures = {"top_logprobs": rows}
        return {"choices": [{"token_ids": list(choice.token_ids), "logprobs": figures}]}

    async def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        params = self._pooling.PoolingParams(task="embed")
        output = await self._last(self._engine.encode, body["input"], params, body["model"])
        values = output.outputs.data.tolist()
        return {"data": [{"embedding": base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()}]}

    async def _last(self, ask: Any, prompt: list[int], params: Any, model: str) -> Any:
        """Return the last of the outputs that `ask` yields for a prompt of token ids."""
        self._count += 1
        tokens = {"type": "token", "prompt_token_ids": prompt}
        outputs: AsyncIterator[Any] = ask(tokens, params, str(self._count), lora_request=self._adapters.get(model))
        return [output async for output in outputs][-1]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, each as soon as it is ready; they end with the connection."""

        async def reply(number: int, path: str, body: dict[str, Any]) -> None:
            writer.write(json.dumps([number, *await self.answer(path, body)]).encode() + b"\n")

        tasks: set[asyncio.Task[None]] = set()
        try:
            while line := await reader.readline():
                task = asyncio.create_task(reply(*json.loads(line)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except ConnectionError:
            pass  # R2V closed it with answers on their way
        finally:
            for task in tasks:
                task.cancel()
            writer.close()


def _vllm(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


async def serve(path: str, words: list[str]) -> None:
    """Load the engine, then answer on the socket until the process ends."""
    engine = DirectEngine(words)
    server = await asyncio.start_unix_server(engine.connected, path, limit=_LONGEST_LINE)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
