"""A pair behind the server without any training: a bundle whose router reads one feature, and stubs for both models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from r2v.config import InferenceConfig, PolicyConfig, RouterConfig, TeacherConfig, identity, load
from r2v.config.model_facts import CostConfig
from r2v.data.tools import RecordedTool
from r2v.router.features import FEATURE_VERSION
from r2v.router.models import LinearModel, Platt, RouterModel
from r2v.serve.bundle.domain import Domain, family, write_domain
from r2v.serve.bundle.manifest import BUNDLE_FORMAT, BundleManifest, write_bundle_manifest
from r2v.serve.server import listening
from r2v.storage.files import content_sha256, write_json
from tests.serve.stub import Seen, Served, Step, Stub, in_thread, stub

PROMPT = "You are an agent. Today is 2026-11-27, and you work in /home/me/project."
LS = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = {
    "chat": [{"type": "function", "function": {"name": "ls", "description": "List.", "parameters": LS}}],
    "responses": [{"type": "function", "name": "ls", "description": "List.", "parameters": LS}],
    "messages": [{"name": "ls", "description": "List.", "input_schema": LS}],
}


def make_bundle(folder: Path, threshold: float = 0.5, *, domain: Domain | None = None) -> Path:
    """Make a bundle of two API models: the LLM acts after a page that is an error, and else the small model."""
    (folder / "router").mkdir(parents=True)
    part = LinearModel(intercept=-2.0, weights=(4.0,), means=(0.0,), scales=(1.0,))
    router = RouterModel(
        kind="logistic", label="counterfactual", names=("page.obs_is_error",), part=part, calibration=Platt()
    )
    router.save(folder / "router" / "r2v.json")
    points = [{"tau": 0.05, "llm_call_rate": 1.0}, {"tau": threshold, "llm_call_rate": 0.3}]
    write_json(folder / "router" / "threshold.json", {"tau": threshold, "evaluated": points})
    policy = PolicyConfig(provider="openai", model_name="little-1")
    router_config = RouterConfig(features=["page"])
    settings = {
        "policy": identity(policy),
        "inference": identity(InferenceConfig()),
        "router": identity(router_config),
        "cost": identity(CostConfig()),
        "teacher": identity(TeacherConfig(provider="openai", model_name="big-1")),
    }
    write_json(folder / "settings.json", settings)
    known = Domain(tools=(RecordedTool(name="ls", parameters=LS),), prompts=(family(PROMPT),))
    write_domain(folder, domain or known)
    files = {path.relative_to(folder).as_posix(): content_sha256(path) for path in folder.rglob("*") if path.is_file()}
    manifest = BundleManifest(
        format=BUNDLE_FORMAT,
        r2v_version="test",
        benchmark="logs",
        benchmark_version="",
        base_model="little-1",
        weights="none",
        feature_version=FEATURE_VERSION,
        threshold=threshold,
        llm_call_rate=0.3,
        sources={},
        results_sha256=None,
        files=files,
        prompt_version=policy.prompt_version,
    )
    write_bundle_manifest(folder, manifest)
    return folder


@contextmanager
def pair_served(
    folder: Path,
    large: Callable[[Seen], Sequence[Step]],
    small: Callable[[Seen], Sequence[Step]],
    *overrides: str,
    small_provider: str = "openai",
    llm_url: str | None = None,
    llm_model: str = "big-1",
) -> Iterator[tuple[Served, Stub, Stub]]:
    """Yield a server of the bundle, with the stubs of the LLM and of the small model."""
    bundle = folder / "bundle"
    if not bundle.exists():
        make_bundle(bundle)
    with stub(large) as llm, stub(small) as little:
        api = {"base_url": f"{little.url}/v1", "api_key_env": "STUB_API_KEY", "usd_in": 0.1, "usd_out": 0.4}
        teacher = {
            "provider": "openai",
            "model_name": llm_model,
            "base_url": llm_url or f"{llm.url}/v1",
            "usd_in": 1.0,
            "usd_out": 4.0,
        }
        config = load(
            {
                "teacher": teacher | {"api_key_env": "STUB_API_KEY"},
                "policy": {"provider": small_provider, "model_name": "little-1", "api": api},
                "serve": {"port": 0},
            },
            list(overrides),
        )

        async def main(ready: Callable[[Any], None], stop: asyncio.Event) -> None:
            async with listening(config, folder, record=True, bundle=bundle) as place:
                ready(place)
                await stop.wait()

        with in_thread(main) as place:
            yield Served(url=place.url, key=place.keys_file.read_text().split()[1], folder=place.folder), llm, little


def conversation(
    wire: str, *results: str, ids: Sequence[str] = (), text: str = "List the files."
) -> list[dict[str, Any]]:
    """Return a conversation in which `ls` was called once for each result."""
    items: list[dict[str, Any]] = [{"role": "user", "content": text}]
    for number, result in enumerate(results):
        name = ids[number] if number < len(ids) else f"call_{number}"
        arguments = json.dumps({"at": str(number)})
        if wire == "messages":
            items.append(
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": name, "name": "ls", "input": {"at": str(number)}}],
                }
            )
            items.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": result}]})
        elif wire == "responses":
            items.append({"type": "function_call", "call_id": name, "name": "ls", "arguments": arguments})
            items.append({"type": "function_call_output", "call_id": name, "output": result})
        else:
            call = {"id": name, "type": "function", "function": {"name": "ls", "arguments": arguments}}
            items.append({"role": "assistant", "content": None, "tool_calls": [call]})
            items.append({"role": "tool", "tool_call_id": name, "content": result})
    return items


def asks(wire: str, items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a request of the agent whose prompt and tools the bundle knows."""
    body: dict[str, Any] = {"model": "r2v", "tools": TOOLS[wire]}
    if wire == "responses":
        body |= {"input": items, "instructions": PROMPT}
    elif wire == "messages":
        body |= {"messages": items, "system": PROMPT, "max_tokens": 100}
    else:
        body |= {"messages": [{"role": "system", "content": PROMPT}, *items], "max_tokens": 100}
    return body | more
