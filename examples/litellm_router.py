"""LiteLLM callback that routes by R2V's decisions, for a gateway that stays in place.

    # config.yaml of LiteLLM's proxy
    litellm_settings: {callbacks: examples.litellm_router.router}
    model_list:
      - {model_name: r2v, litellm_params: {model: openai/gpt-6.1-terra}}
      - {model_name: r2v-small, litellm_params: {model: openai/gpt-6-luna}}

    R2V_SERVE_URL=http://127.0.0.1:8484 R2V_SERVE_KEY=... litellm --config config.yaml

Before a request for `r2v` is sent, the callback asks `POST /v1/decide` of `r2v serve BUNDLE`; if it chooses the small
model, the request goes to `r2v-small`. A missing or late decision leaves the request with the LLM.
R2V asks its own small model for the proposal that it judges, so the small model is asked twice at such a step.
"""

from __future__ import annotations

import os
from typing import Any

import httpx2
from litellm.integrations.custom_logger import CustomLogger

ROUTED, SMALL = "r2v", "r2v-small"
_SECONDS = 20.0
_WIRES = {"acompletion": "chat", "completion": "chat", "aresponses": "responses", "anthropic_messages": "messages"}
_FIELDS = ("messages", "input", "system", "instructions", "tools", "max_tokens", "temperature", "thinking")


class R2VRouter(CustomLogger):  # type: ignore[misc]
    """Send a step to the small model if R2V's router chooses it."""

    def __init__(self) -> None:
        super().__init__()
        self._url, self._key = os.environ["R2V_SERVE_URL"], os.environ["R2V_SERVE_KEY"]

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> Any:
        """Change the model of a request that R2V decides."""
        wire = _WIRES.get(call_type)
        if data.get("model") != ROUTED or wire is None:
            return data
        request = {name: data[name] for name in _FIELDS if name in data} | {"model": ROUTED}
        try:
            async with httpx2.AsyncClient(timeout=_SECONDS) as client:
                answer = await client.post(
                    f"{self._url}/v1/decide",
                    json={"wire": wire, "request": request},
                    headers={"authorization": f"Bearer {self._key}"},
                )
            first = answer.json()["candidates"][0]["source"] if answer.status_code == 200 else "llm"
        except (httpx2.HTTPError, ValueError, LookupError):
            first = "llm"
        return {**data, "model": SMALL} if first == "small" else data


router = R2VRouter()
