"""Offline grader run by the child interpreter: webarena-verified on recorded traffic.

    PYTHON regrader.py FOLDER PUBLIC_NAMES       # a JSON line per episode on standard output

webarena-verified rewords its tasks and expects answers in a form of its own. An answer in that form is graded directly;
any other is converted: a text becomes the one retrieved value, "N/A" the error that the task expects. Not covered are
forms that a plain answer cannot express: records, several values, a number or a Boolean within a sentence, the kind of
an error. Tasks whose evaluator only checks that a site's first page was loaded last are not covered either, since it
cannot tell a page that shows a route from one without.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

_PRICE = re.compile(r"[$€£]?\s*-?[\d,]*\.?\d+")


def main(folder: str, names: str) -> None:
    """Grade every episode of a folder. `names`: site -> public name, as JSON."""
    api = importlib.import_module("webarena_verified.api")
    types = importlib.import_module("webarena_verified.types.config")
    sites = {f"__{site.upper()}__": {"urls": [url]} for site, url in json.loads(names).items()}
    sites.pop("__HOMEPAGE__", None)
    grader = api.WebArenaVerified(config=types.WebArenaVerifiedConfig.model_validate({"environments": sites}))
    listed = Path(str(importlib.import_module("webarena_verified").__file__)).parent / "assets" / "dataset"
    rules = {task["task_id"]: task["eval"] for task in json.loads((listed / "webarena-verified.json").read_text())}
    for path in sorted(Path(folder).glob("*.json")):
        print(json.dumps(_graded(grader, rules, path)))


def _graded(grader: Any, rules: dict[int, Any], path: Path) -> dict[str, Any]:
    """Return the row of one episode: the grader's score and the live one."""
    record = json.loads(path.read_text())
    id_ = int(record["task_id"].rpartition(".")[2])
    row = {"episode": path.stem, "task_id": record["task_id"], "seed": record["seed"], "live": record["reward"]}
    if record["fault"] is not None or record["reward"] is None:
        return {**row, "regraded": None, "why": "not measured: a fault of the world"}
    if any(rule["evaluator"] == "NetworkEventEvaluator" and _is_first_page(rule["expected"]) for rule in rules[id_]):
        return {**row, "regraded": None, "why": "not covered: any end is right there that leaves a first page loaded"}
    expected = next(rule for rule in rules[id_] if rule["evaluator"] == "AgentResponseEvaluator")
    response, why = _response(record["answer"], expected)
    if response is None:
        return {**row, "regraded": None, "why": why}
    traffic = json.loads(gzip.decompress(path.with_suffix(".har.gz").read_bytes()))
    result = grader.evaluate_task(task_id=id_, agent_response=response, network_trace=traffic["log"]["entries"])
    if result.error_msg:
        return {**row, "regraded": None, "why": " ".join(str(result.error_msg).split())[:200]}
    return {**row, "regraded": float(result.score), "why": ""}


def _is_first_page(event: dict[str, Any]) -> bool:
    """True if an expected request is for a site's first page, without further conditions."""
    return [*event] == ["url"] and re.fullmatch(r"__[A-Z_]+__/?", str(event["url"])) is not None


def _response(answer: str | None, expected: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return (answer in the grader's form, ""), or (None, reason)."""
    target, text, given = expected["expected"], (answer or "").strip(), _parsed(answer)
    kind, fails = str(target["task_type"]).upper(), target["status"] != "SUCCESS"
    if isinstance(given, dict) and "status" in given:
        return given, ""
    if text.lower() == "n/a":
        return _form(kind, target["status"] if fails else "NOT_FOUND_ERROR", None, text), ""
    if not text:
        return _form(kind, "UNKNOWN_ERROR" if kind == "RETRIEVE" else "SUCCESS", None, None), ""
    if fails:
        return None, "not covered: the task expects an error there, and a sentence does not say which"
    if kind != "RETRIEVE":
        return _form(kind, "SUCCESS", None, None), ""
    values, why = ([*given], "") if isinstance(given, list) else _values(text, given, expected)
    return (None, why) if why else (_form(kind, "SUCCESS", values, None), "")


def _values(text: str, given: Any, expected: dict[str, Any]) -> tuple[list[Any], str]:
    """Return (values of a plain answer, ""), or any values and the reason why the task does not accept them."""
    items = expected["results_schema"].get("items") or {}
    kind = items.get("type")
    if kind not in ("string", "number", "boolean"):
        return [], "not covered: the task asks for records there"
    if kind == "boolean":
        return [given], "" if isinstance(given, bool) else "not covered: the task asks for true or false there"
    if kind == "number":
        if isinstance(given, int | float) and not isinstance(given, bool):
            return [given], ""
        price = items.get("format") == "currency" and _PRICE.fullmatch(text)
        return [text], "" if price else "not covered: the task asks for a number there"
    return [text], "" if len(expected["expected"]["retrieved_data"]) == 1 else "not covered: it asks for several values"


def _form(kind: str, status: str, data: list[Any] | None, details: str | None) -> dict[str, Any]:
    return {"task_type": kind, "status": status, "retrieved_data": data, "error_details": details}


def _parsed(answer: str | None) -> Any:
    try:
        return json.loads(answer or "")
    except ValueError:
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
