"""The wire: what is asked of a server's /v1/completions, and how its answer is read.

Token ids go out, made by the product's own encoder, and token ids come back: no second renderer, no second tokenizer.
Each completion is a request of its own, whose key is the request's with its number, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from r2v.llm.engines.keyed import NUM_LOGPROBS, read_report
from r2v.llm.local.decode import Draw, Drawn

COMPLETIONS = "/v1/completions"


class NotKeyed(ValueError):
    """The server's answer holds no exact figures: it runs without R2V's processor, or with another vLLM's."""


class Shortened(ValueError):
    """The server cut a reply short of what was asked, without saying so: it would not have fitted."""


def completion_body(model: str, prompt: Sequence[int], draw: Draw, end_ids: frozenset[int]) -> dict[str, Any]:
    """The body of the request for one completion."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": draw.max_tokens,
        "temperature": 0,
        "n": 1,
        "logprobs": NUM_LOGPROBS,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "add_special_tokens": False,
        "stop_token_ids": sorted(end_ids),
        "vllm_xargs": {
            "r2v_key": json.dumps(list(draw.key)),
            "r2v_temperature": draw.temperature,
            "r2v_top_p": draw.top_p,
        },
    }


def read_completion(answer: Mapping[str, Any], max_tokens: int, end_ids: frozenset[int]) -> Drawn:
    """The tokens of an answer with their figures, rounded to 6 decimals. Raises Shortened and NotKeyed; KeyError,
    TypeError or ValueError for what is no answer of such a server."""
    choice = answer["choices"][0]
    tokens = [int(token) for token in choice["token_ids"]]
    if not tokens:
        raise Shortened("the reply has no token")
    drawn = Drawn(tokens=tokens, ended=tokens[-1] in end_ids)
    if not drawn.ended and len(tokens) < max_tokens:
        raise Shortened(f"the reply was cut at {len(tokens)} of {max_tokens} tokens")
    figures = choice["logprobs"]["top_logprobs"]
    for token, alternatives in zip(tokens, figures, strict=True):
        told = read_report(token, {int(name.removeprefix("token_id:")): v for name, v in alternatives.items()})
        if told is None:
            raise NotKeyed("its answers hold no exact log-probabilities and entropies")
        drawn.logprobs.append(round(told[0], 6) + 0.0)
        drawn.entropies.append(round(told[1], 6) + 0.0)
    return drawn


def reason_of(status: int, text: str) -> str:
    """A server's refusal in one line."""
    try:
        told = json.loads(text)
        message = told.get("error", told)
        message = message.get("message", message) if isinstance(message, Mapping) else message
    except (ValueError, AttributeError):
        message = text
    return f"{status}: {' '.join(str(message).split())[:300]}"
