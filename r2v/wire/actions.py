"""Actions: the tool calls of a reply and the thought before them, read from any form that models write.

    read_actions(reply.message, {"get", "submit"})      # Actions(lines=('{"tool":"get","id":"r2"}',), thought="...")

Native calls take precedence over calls in the text, which servers without a parser leave there. A text is a call only
if it names one of the request's tools: prose that happens to hold JSON stays prose.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from r2v.wire.message import Message, RefusalPart, TextPart, ToolCall, mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Actions:
    """Actions of a reply, one line of JSON each, in order of execution. Without actions, `text` is the reply's text.
    `thought` precedes or accompanies them."""

    lines: tuple[str, ...] = ()
    text: str = ""
    thought: str = ""


_THOUGHT = re.compile(
    r"<(think|thinking|thought|reasoning|analysis)>(.*?)(?:</\1>|\Z)|\[THINK\](.*?)(?:\[/THINK\]|\Z)"
    r"|<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|(?=<\|start\|>|<\|channel\|>)|\Z)"
    r"|<\|START_THINKING\|>(.*?)(?:<\|END_THINKING\|>|\Z)|<\|inner_prefix\|>(.*?)(?:<\|inner_suffix\|>|\Z)"
    r"|\u25c1think\u25b7(.*?)(?:\u25c1/think\u25b7|\Z)",
    re.S,
)
_OPEN_THOUGHT = re.compile(r"\A(.*?)</(?:think|thinking|thought)>", re.S)
"""A thought whose opening mark was the end of the prompt."""
_MARKS = (
    (re.compile(r"\Aanalysis(.*?)assistantfinal", re.S), r"<|channel|>analysis<|message|>\1<|end|>"),
    (
        re.compile(r"\Aanalysis(.*?)assistantcommentary (to=[\w.-]+)[ \w]*(?={)", re.S),
        r"<|channel|>analysis<|message|>\1<|end|><|channel|>commentary \2<|message|>",
    ),
    (re.compile(r"<\|open\|>([^<]*)<\|sep\|>"), r"<\1>"),
    (re.compile(r"<\|close\|>(\w+)<\|sep\|>"), r"</\1>"),
    (re.compile(r"\]<\]minimax\[>\[|\uff5cDSML\uff5c"), ""),
    (re.compile(r"(</?)(?:longcat_|minimax:|seed:|steptml:)(?=\w)"), r"\1"),
    (
        re.compile(r"<invoke>\s*<tool_name>([\w.-]+)</tool_name>\s*<parameters>(.*?)</parameters>", re.S),
        r'<invoke name="\1">\2',
    ),
    (re.compile(r'\A\s*="([\w.-]+)">(?=\s*<parameter)'), r'<invoke name="\1">'),
    (re.compile(r"(?:<\|(?:eot_id|im_end|endoftext|END_RESPONSE)\|>|<end_of_turn>)\s*\Z|<\|START_RESPONSE\|>"), ""),
)
"""Marks -> the common form: stripped ones of gpt-oss, those of Kimi K3, MiniMax M3, DeepSeek V3.2, Seed, LongCat, Step
and LiteLLM, Claude's without the first; ends of a turn -> nothing."""
_HARMONY = re.compile(r"<\|(?:start|channel|constrain|message|end|return|call)\|>")
_HARMONY_CALL = re.compile(
    r"to=([\w.-]+)[^{<]*(?:<\|(?:constrain|channel)\|>[^{<]*)*<\|message\|>"
    r"(.*?)(?:<\|call\|>|<\|end\|>|<\|return\|>|\Z)",
    re.S,
)
_TAGGED = re.compile(
    r"<(tool_call|function_calls?|tool_use|action|toolcall)>(.*?)(?:</\1>|\Z)"
    r"|<\|tools_prefix\|>(.*?)(?:<\|tools_suffix\|>|\Z)"
    r"|<\|tool_call\|?>(.*?)(?:<\|?/?tool_call\|?>|<\|end_of_tool_call\|>|\Z)"
    r"|<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)|<\|python_tag\|>(.*?)(?:<\|eo[mt]_id\|>|\Z)"
    r"|<\|START_ACTION\|>(.*?)(?:<\|END_ACTION\|>|\Z)|\[TOOL_CALLS?\](.*?)(?:\[/TOOL_CALLS?\]|(?=\[TOOL_CALLS?\])|</s>|\Z)",
    re.S,
)
_XML_CALL = re.compile(r"<(function|invoke|call)(?:=\"?|\s+(?:name|tool)=\")([\w.-]+)[^>]*>(.*?)(?:</\1>|\Z)", re.S)
_XML_ARGUMENT = re.compile(
    r"<(param|parameter|argument)(?:=\"?|\s+(?:name|key)=\")([\w.-]+)([^>]*)>\n?(.*?)\n?(?:</\1>|(?=<\1)|\Z)", re.S
)
_XML_CHILD = re.compile(r"<([\w.-]+)>(.*?)</\1>", re.S)
_KEYED_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.S)
_NAMED_OBJECT = re.compile(r"(?:call:)?([\w.:-]+)\s*(?:\[ARGS\])?\s*(\{.*\})\Z", re.S)
_NAMED_CALL = re.compile(
    r"(?<![\w.-])([\w.-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|<\|tool_calls_section_end\|>|\Z)"
    r"|<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?([\w.-]+)"
    r"(?:\s*```json\s*|<\uff5ctool\u2581sep\uff5c>)(.*?)(?:```)?\s*(?:<\uff5ctool\u2581call\u2581end\uff5c>|\Z)",
    re.S,
)
_FENCE = re.compile(r"```[\w-]*\s*\n(.*?)(?:\n\s*```|\Z)", re.S)
_NAMES = ("name", "tool_name", "function_name", "function", "tool", "action", "recipient_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input", "action_input", "kwargs")
_WRAPPERS = ("action", "function", "tool_call", "function_call", "tool_calls", "call", "calls", "actions", "tool_uses")


def read_actions(message: Message, tools: Collection[str]) -> Actions:
    """Return the actions of a reply. tools: names of the tools that may be called; without any, only the text."""
    full_text = _words(message)
    if not message.calls and tools and (plain := _plain(full_text, tools)) is not None:
        return Actions(
            lines=(plain,), text=plain, thought=message.thought
        )  # marks inside its arguments are no thoughts
    thought, text = split_thought(full_text)
    thought = "\n".join(filter(None, (message.thought, thought)))
    if message.calls:
        lines = tuple(call.line for native in message.calls for call in _offered(native, tools))
        return Actions(lines=lines, text="\n".join(lines), thought="\n".join(filter(None, (thought, text.strip()))))
    if not tools:
        return Actions(text=text, thought=thought)
    if (plain := _plain(text, tools)) is not None:
        return Actions(lines=(plain,), text=plain, thought=thought)
    calls = next((calls for form in _FORMS if (calls := list(form(text, tools)))), [])
    if not calls:
        bare = _HARMONY.sub("", text.rpartition("<|message|>")[2]).strip() if "<|message|>" in text else _unfenced(text)
        return Actions(text=bare, thought=thought)
    lines = tuple(call.line for call in calls)
    return Actions(lines=lines, text="\n".join(lines), thought=thought)


def _words(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.parts if isinstance(part, (TextPart, RefusalPart)))


def split_thought(text: str) -> tuple[str, str]:
    """Return (thought, rest) of a text in which a server left thoughts between their marks."""
    for mark, common in _MARKS:
        text = mark.sub(common, text)
    thoughts = list[str]()

    def collect(match: re.Match[str]) -> str:
        thoughts.extend(group.strip() for group in match.groups()[1:] if group)
        return ""

    rest = _THOUGHT.sub(collect, text) if "<" in text or "[THINK]" in text or "\u25c1" in text else text
    if (match := _OPEN_THOUGHT.match(rest)) is not None:
        thoughts.insert(0, match[1].strip())
        rest = rest[match.end() :]
    return "\n".join(filter(None, thoughts)), rest.strip() if thoughts or rest != text else rest


def _unfenced(text: str) -> str:
    """Return the text without outer blanks and without a code fence around all of it."""
    lines = text.strip().splitlines()
    fenced = len(lines) >= 3 and lines[0].startswith("```") and lines[-1] == "```"
    return "\n".join(lines[1:-1] if fenced else lines).strip()


def _plain(text: str, tools: Collection[str]) -> str | None:
    """Return an action in R2V's own form, unchanged but for a wrapper of all actions; None for another text."""
    bare = _unfenced(text)
    value = _json(bare)
    if isinstance(value, dict) and value.keys() == {"action"} and isinstance(value["action"], dict):
        inner = value["action"]  # a schema that asks for one object around all actions
        return json.dumps(_without_nulls(inner), ensure_ascii=False) if inner.get("tool") in tools else None
    if isinstance(value, dict) and isinstance(value.get("tool"), str) and value["tool"] in tools:
        wrapped = any(isinstance(value.get(name), (dict, str)) for name in ("arguments", "parameters"))
        return None if wrapped and len(value) == 2 else bare
    return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _name(text: object, tools: Collection[str]) -> str | None:
    """Return the tool that a model spells `functions.get`, `get<|channel|>commentary` or `default_api:get`, or None."""
    if not isinstance(text, str):
        return None
    bare = text.partition("<|")[0].strip()
    if bare in tools:
        return bare
    return next((end for mark in (".", ":") if (end := bare.rpartition(mark)[2]) in tools), None)


def _offered(call: ToolCall, tools: Collection[str]) -> list[ToolCall]:
    """Return a native call under its tool's name in the request, or the calls in OpenAI's `multi_tool_use.parallel`."""
    if (name := _name(call.name, tools)) is not None:
        return [ToolCall(name=name, arguments=call.arguments, id=call.id, custom=call.custom)]
    return list(_call_of(mapping(_json(call.arguments)).get("tool_uses"), tools)) or [call]


def _call_of(value: Any, tools: Collection[str], deep: int = 0) -> Iterator[ToolCall]:
    """Yield the calls in a JSON value: objects that name a tool and its arguments under any usual keys, or wrap such
    objects."""
    if isinstance(value, list):
        for item in value:
            yield from _call_of(item, tools, deep + 1)
        return
    if not isinstance(value, dict) or deep > 4:
        return
    for key in _NAMES:
        if (name := _name(value.get(key), tools)) is None:
            continue
        given = [value[word] for word in _ARGUMENTS if word in value]
        rest = {word: item for word, item in value.items() if word != key}
        flat = not given or key == "tool" and len(rest) > 1  # R2V's own form has the arguments next to the name
        yield _call(name, _without_nulls(rest) if flat else given[0])
        return
    for key in _WRAPPERS:
        inner = value.get(key)
        if isinstance(inner, dict):
            inner = {word: value[word] for word in _ARGUMENTS if word in value} | inner
        if isinstance(inner, (dict, list)):
            yield from _call_of(inner, tools, deep + 1)
            return


def _without_nulls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not null: under a schema that requires all, an omitted one is null."""
    return {name: value for name, value in arguments.items() if value is not None}


def _call(name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return ToolCall(name=name, arguments=text)


def _tagged(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield calls between marks: Hermes and Qwen, Llama, Mistral, Granite, Command, GLM, Gemma, LFM, OLMo, Apertus."""
    for match in _TAGGED.finditer(text):
        inner = next(filter(None, match.groups()[1:]), "").strip()
        yield from _keyed(_json(inner), tools) or _inner_calls(inner, tools)


def _keyed(value: Any, tools: Collection[str]) -> list[ToolCall]:
    """Return Apertus' calls: `[{"get": {"id": "r2"}}]`."""
    single = [item for item in value if isinstance(item, dict) and len(item) == 1] if isinstance(value, list) else []
    return [_call(name, inner) for item in single for name, inner in item.items() if name in tools]


def _inner_calls(inner: str, tools: Collection[str]) -> Iterator[ToolCall]:
    value = _json(_unfenced(inner))
    if value is not None:
        yield from _call_of(value, tools)
    elif (name := _name(inner.partition("<")[0], tools)) is not None:  # GLM writes the name, then keys and values
        yield _call(name, {key.strip(): _value(item) for key, item in _KEYED_ARGUMENT.findall(inner)})
    elif (match := _NAMED_OBJECT.match(inner)) and (name := _name(match[1], tools)) is not None:  # Mistral, Gemma
        yield _call(name, _quoted(match[2]))
    elif calls := list(_xml(inner, tools)) or [call for item in _objects(inner) for call in _call_of(item, tools)]:
        yield from calls
    else:
        yield from _python(inner, tools)


def _quoted(text: str) -> str:
    """Return Gemma's object as JSON: names are quoted, and its mark for a quote, or a single quote, is replaced."""
    if _json(text) is not None:
        return text
    if '<|"|>' not in text:
        text = re.sub(r"(?<=[:,\[])'(.*?)'(?=[,}\]])", r'<|"|>\1<|"|>', text, flags=re.S)
    pieces = text.split('<|"|>')
    pieces[::2] = [re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', piece) for piece in pieces[::2]]
    pieces[1::2] = [json.dumps(piece, ensure_ascii=False) for piece in pieces[1::2]]
    return "".join(pieces)


def _xml(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield calls such as `<function=get><parameter=id>r2</parameter></function>` or `<invoke name="get">`."""
    for _, named, inner in _XML_CALL.findall(text):
        if (name := _name(named, tools)) is None:
            continue
        pairs = {
            key: value if 'string="true"' in kind or 'type="string"' in kind else _value(value)
            for _, key, kind, value in _XML_ARGUMENT.findall(inner)
        } or {key: _value(value) for key, value in _XML_CHILD.findall(inner)}
        yield _call(name, pairs or inner.strip())


def _named(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield calls with the name between marks: Kimi, DeepSeek."""
    for match in _NAMED_CALL.finditer(text):
        named, arguments = filter(None, match.groups())
        if (name := _name(named, tools)) is not None:
            yield _call(name, arguments.strip())


def _harmony(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield calls of gpt-oss: `<|channel|>commentary to=functions.get <|constrain|>json<|message|>{...}`."""
    for named, arguments in _HARMONY_CALL.findall(text) if "<|message|>" in text else ():
        if (name := _name(named, tools)) is not None:
            yield _call(name, arguments.strip())


def _fenced(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield the calls of the last code block that holds any."""
    calls = [list(_inner_calls(block.strip(), tools)) for block in _FENCE.findall(text)]
    yield from next((block_calls for block_calls in reversed(calls) if block_calls), [])


def _bare(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield the last JSON object in the text that is a call; earlier ones belong to a model's thinking aloud."""
    calls = [list(_call_of(value, tools)) for value in _objects(text)]
    yield from next((value_calls for value_calls in reversed(calls) if value_calls), [])


def _python(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield calls in Python, such as `get(id="r2")`, if they are the whole text: alone, in a list, in `print`, or one
    per line (Llama, Gemma, LFM, OLMo); or a call's object as a Python literal."""
    if not any(name in text for name in tools):
        return
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        yield from list(_python_calls(ast.parse(_unfenced(text)), tools))


def _python_calls(tree: ast.Module, tools: Collection[str]) -> Iterator[ToolCall]:
    values = [statement.value for statement in tree.body if isinstance(statement, ast.Expr)]
    if len(values) < len(tree.body):
        return  # statements make it a program, not calls
    for value in values:
        yield from _call_of(_literal(value), tools)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _name(ast.unparse(node.func), tools)) and not node.args:
            yield _call(name, {word.arg: _literal(word.value) for word in node.keywords if word.arg})


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return _value(ast.unparse(node))


def _react(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Yield a ReAct call: `Action: get` and `Action Input: {...}` on separate lines."""
    match = re.search(r"^\s*Action:\s*([\w.-]+)\s*\n\s*Action Input:\s*(.*)", text, re.S | re.M)
    if match is not None and (name := _name(match[1], tools)) is not None:
        value = next(_objects(match[2]), None)
        yield _call(name, match[2].strip() if value is None else value)


_FORMS = (_harmony, _named, _tagged, _xml, _fenced, _bare, _react, _python)


def _value(text: str) -> Any:
    """Return the value of an argument written as text: its JSON value if it has one, else the text."""
    stripped = text.strip()
    value = _json({"True": "true", "False": "false", "None": "null"}.get(stripped, stripped))
    return text if value is None and stripped not in ("None", "null") else value


def _objects(text: str) -> Iterator[Any]:
    """Yield the outermost JSON objects and lists in a text, from left to right."""
    decoder, start = json.JSONDecoder(), 0
    while (opening := re.compile(r"[\[{]").search(text, start)) is not None:
        try:
            value, start = decoder.raw_decode(text, opening.start())
            yield value
        except ValueError:
            start = opening.start() + 1
        except RecursionError:
            return
