"""Wire format of a server's /v1/completions: request bodies and the reading of answers.

Token ids go out, encoded by R2V, and token ids come back, so the server's tokenizer and chat template play no part.
Each completion is a separate HTTP request; sample k of a request has the key (*key, k).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from r2v.llm.engines.keyed import NUM_LOGPROBS, read_report
from r2v.llm.local.decode import Draw, Drawn

COMPLETIONS = "/v1/completions"


class NotKeyed(ValueError):
    """The answer holds no exact figures: the server runs without R2V's logits processor."""


class Shortened(ValueError):
    """The reply ends before `max_tokens` without an end token: prompt and reply exceed the server's context."""


def completion_body(model: str, prompt: Sequence[int], draw: Draw, end_ids: frozenset[int]) -> dict[str, Any]:
    """Return the JSON body of the request for one completion, with log-probabilities if the draw's are read."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": draw.max_tokens,
        "temperature": 0,
        "n": 1,
        "logprobs": NUM_LOGPROBS if draw.logprobs else None,
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


def read_completion(answer: Mapping[str, Any], draw: Draw, end_ids: frozenset[int]) -> Drawn:
    """Return the tokens of an answer, with log-probabilities and entropies (nats, 6 decimals) if the draw's are read.
    Raises Shortened and NotKeyed; KeyError, TypeError or ValueError if the answer has another format."""
    choice = answer["choices"][0]
    tokens = [int(token) for token in choice["token_ids"]]
    if not tokens:
        raise Shortened("the reply has no token")
    drawn = Drawn(tokens=tokens, ended=tokens[-1] in end_ids)
    if not drawn.ended and len(tokens) < draw.max_tokens:
        raise Shortened(f"the reply was cut at {len(tokens)} of {draw.max_tokens} tokens")
    if not draw.logprobs:
        return drawn
    figures = choice["logprobs"]["top_logprobs"]
    for token, alternatives in zip(tokens, figures, strict=True):
        report = read_report(token, {int(name.removeprefix("token_id:")): v for name, v in alternatives.items()})
        if report is None:
            raise NotKeyed("its answers hold no exact log-probabilities and entropies")
        drawn.logprobs.append(round(report[0], 6) + 0.0)
        drawn.entropies.append(round(report[1], 6) + 0.0)
    return drawn


def reason_of(status: int, text: str) -> str:
    """Return a server's error answer as one line."""
    try:
        body = json.loads(text)
        message = body.get("error", body)
        message = message.get("message", message) if isinstance(message, Mapping) else message
    except (ValueError, AttributeError):
        message = text
    return f"{status}: {' '.join(str(message).split())[:300]}"
