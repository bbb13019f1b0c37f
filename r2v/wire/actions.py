"""Actions: a reply as the tool calls that it makes and the thought before them, in whichever form the model gave them.

    read_actions(reply.message, {"get", "submit"})      # Actions(lines=('{"tool":"get","id":"r2"}',), thought="...")

Native calls come first; then the forms in which servers without a parser leave calls in the text. Only a name among the
request's tools makes a call of a text: prose that happens to hold JSON stays prose.
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
    """A reply's actions, one line of JSON each, in the order in which they are to be executed; none where the reply
    holds none, and `text` then is what it says. `thought` was said before, or beside them."""

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
"""A thought whose opening mark stood at the end of the prompt."""
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
"""Marks of gpt-oss that a server stripped, of Kimi K3, MiniMax M3, DeepSeek V3.2, Seed, LongCat and Step, of LiteLLM,
of Claude without its first -> those that others use too; ends of a turn that a server left -> nothing."""
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
    """The actions in a reply, where there are tools to call: their names. Without tools, its text alone."""
    words = _words(message)
    if not message.calls and tools and (plain := _plain(words, tools)) is not None:
        return Actions(lines=(plain,), text=plain, thought=message.thought)  # marks of thoughts may stand in its texts
    thought, text = split_thought(words)
    thought = "\n".join(filter(None, (message.thought, thought)))
    if message.calls:
        lines = tuple(call.line for given in message.calls for call in _offered(given, tools))
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
    """A text as (thought, the rest): thoughts that a server left in it between their marks."""
    for mark, common in _MARKS:
        text = mark.sub(common, text)
    thoughts = list[str]()

    def take(match: re.Match[str]) -> str:
        thoughts.extend(group.strip() for group in match.groups()[1:] if group)
        return ""

    rest = _THOUGHT.sub(take, text) if "<" in text or "[THINK]" in text or "\u25c1" in text else text
    if (match := _OPEN_THOUGHT.match(rest)) is not None:
        thoughts.insert(0, match[1].strip())
        rest = rest[match.end() :]
    return "\n".join(filter(None, thoughts)), rest.strip() if thoughts or rest != text else rest


def _unfenced(text: str) -> str:
    """The text without blanks, and without the code fence that is around all of it."""
    lines = text.strip().splitlines()
    fenced = len(lines) >= 3 and lines[0].startswith("```") and lines[-1] == "```"
    return "\n".join(lines[1:-1] if fenced else lines).strip()


def _plain(text: str, tools: Collection[str]) -> str | None:
    """The text where it is R2V's own form of an action, to the byte: what is stored is what the model said."""
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
    """A tool's name as models spell it: `functions.get`, `get<|channel|>commentary`, `default_api:get`."""
    if not isinstance(text, str):
        return None
    bare = text.partition("<|")[0].strip()
    if bare in tools:
        return bare
    return next((end for mark in (".", ":") if (end := bare.rpartition(mark)[2]) in tools), None)


def _offered(call: ToolCall, tools: Collection[str]) -> list[ToolCall]:
    """A native call under its tool's name in the request; each of the calls in OpenAI's `multi_tool_use.parallel`."""
    if (name := _name(call.name, tools)) is not None:
        return [ToolCall(name=name, arguments=call.arguments, id=call.id, custom=call.custom)]
    return list(_call_of(mapping(_json(call.arguments)).get("tool_uses"), tools)) or [call]


def _call_of(value: Any, tools: Collection[str], deep: int = 0) -> Iterator[ToolCall]:
    """The calls in a JSON value: an object that names a tool and its arguments, in any of the usual words, or wraps
    such objects."""
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
        flat = not given or key == "tool" and len(rest) > 1  # R2V's own form has arguments beside the name
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
    """Arguments without those that are null: a schema that requires all of them gives null for one left out."""
    return {name: value for name, value in arguments.items() if value is not None}


def _call(name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return ToolCall(name=name, arguments=text)


def _tagged(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Calls between marks: Hermes and Qwen, Llama, Mistral, Granite, Command, GLM, Gemma, LFM, OLMo, Apertus."""
    for match in _TAGGED.finditer(text):
        inner = next(filter(None, match.groups()[1:]), "").strip()
        yield from _keyed(_json(inner), tools) or _inner_calls(inner, tools)


def _keyed(value: Any, tools: Collection[str]) -> list[ToolCall]:
    """Apertus: `[{"get": {"id": "r2"}}]`."""
    single = [item for item in value if isinstance(item, dict) and len(item) == 1] if isinstance(value, list) else []
    return [_call(name, inner) for item in single for name, inner in item.items() if name in tools]


def _inner_calls(inner: str, tools: Collection[str]) -> Iterator[ToolCall]:
    value = _json(_unfenced(inner))
    if value is not None:
        yield from _call_of(value, tools)
    elif (name := _name(inner.partition("<")[0], tools)) is not None:  # GLM: the name, then keys and values
        yield _call(name, {key.strip(): _value(item) for key, item in _KEYED_ARGUMENT.findall(inner)})
    elif (match := _NAMED_OBJECT.match(inner)) and (name := _name(match[1], tools)) is not None:  # Mistral, Gemma
        yield _call(name, _quoted(match[2]))
    elif calls := list(_xml(inner, tools)) or [call for found in _objects(inner) for call in _call_of(found, tools)]:
        yield from calls
    else:
        yield from _python(inner, tools)


def _quoted(text: str) -> str:
    """Gemma's objects as JSON: names get their quotes, and its mark for a quote, or a single quote, becomes one."""
    if _json(text) is not None:
        return text
    if '<|"|>' not in text:
        text = re.sub(r"(?<=[:,\[])'(.*?)'(?=[,}\]])", r'<|"|>\1<|"|>', text, flags=re.S)
    pieces = text.split('<|"|>')
    pieces[::2] = [re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', piece) for piece in pieces[::2]]
    pieces[1::2] = [json.dumps(piece, ensure_ascii=False) for piece in pieces[1::2]]
    return "".join(pieces)


def _xml(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """`<function=get><parameter=id>r2</parameter></function>`, `<invoke name="get">` and their kin."""
    for _, named, inner in _XML_CALL.findall(text):
        if (name := _name(named, tools)) is None:
            continue
        pairs = {
            key: value if 'string="true"' in kind or 'type="string"' in kind else _value(value)
            for _, key, kind, value in _XML_ARGUMENT.findall(inner)
        } or {key: _value(value) for key, value in _XML_CHILD.findall(inner)}
        yield _call(name, pairs or inner.strip())


def _named(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """Calls with the name between marks: Kimi, DeepSeek."""
    for match in _NAMED_CALL.finditer(text):
        named, arguments = filter(None, match.groups())
        if (name := _name(named, tools)) is not None:
            yield _call(name, arguments.strip())


def _harmony(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """gpt-oss: `<|channel|>commentary to=functions.get <|constrain|>json<|message|>{...}`."""
    for named, arguments in _HARMONY_CALL.findall(text) if "<|message|>" in text else ():
        if (name := _name(named, tools)) is not None:
            yield _call(name, arguments.strip())


def _fenced(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """A call in a code block of a longer text: the last, if there are several."""
    calls = [list(_inner_calls(block.strip(), tools)) for block in _FENCE.findall(text)]
    yield from next((found for found in reversed(calls) if found), [])


def _bare(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """An object somewhere in the text: the last that is a call, as models think aloud before it."""
    calls = [list(_call_of(value, tools)) for value in _objects(text)]
    yield from next((found for found in reversed(calls) if found), [])


def _python(text: str, tools: Collection[str]) -> Iterator[ToolCall]:
    """`get(id="r2")`, the whole text, in a list, in `print` or on a line each, as Llama, Gemma, LFM and OLMo write
    calls; or a call's object in Python's spelling."""
    if not any(name in text for name in tools):
        return
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        yield from list(_python_calls(ast.parse(_unfenced(text)), tools))


def _python_calls(tree: ast.Module, tools: Collection[str]) -> Iterator[ToolCall]:
    values = [statement.value for statement in tree.body if isinstance(statement, ast.Expr)]
    if len(values) < len(tree.body):
        return  # a program
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
    """`Action: get` and `Action Input: {...}` on lines of their own."""
    match = re.search(r"^\s*Action:\s*([\w.-]+)\s*\n\s*Action Input:\s*(.*)", text, re.S | re.M)
    if match is not None and (name := _name(match[1], tools)) is not None:
        value = next(_objects(match[2]), None)
        yield _call(name, match[2].strip() if value is None else value)


_FORMS = (_harmony, _named, _tagged, _xml, _fenced, _bare, _react, _python)


def _value(text: str) -> Any:
    """An argument written as text: JSON where it is a number, a list, an object or a quoted text, else itself."""
    stripped = text.strip()
    value = _json({"True": "true", "False": "false", "None": "null"}.get(stripped, stripped))
    return text if value is None and stripped not in ("None", "null") else value


def _objects(text: str) -> Iterator[Any]:
    """The objects and lists of JSON in a text, from left to right; what lies inside one is not looked at again."""
    decoder, start = json.JSONDecoder(), 0
    while (opening := re.compile(r"[\[{]").search(text, start)) is not None:
        try:
            value, start = decoder.raw_decode(text, opening.start())
            yield value
        except ValueError:
            start = opening.start() + 1
        except RecursionError:
            return
