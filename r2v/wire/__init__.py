"""Wire formats: Chat Completions, Responses and Messages, each read and written in one module and nowhere else.

    chat, responses, anthropic     requests, replies, streams and usage of one format
    message, exchange              shared structure: messages with parts, tools, text; a request, a reply, token counts
    errors                         errors by their structure: status, code, shape
    actions                        a reply as actions and a thought, in any form of a tool call
    sse, stream_facts              server-sent events; facts of a reply read from its stream

Readers are tolerant: fields, parts, items and tools that R2V does not know are kept unchanged, so that a round trip
gives the same JSON. Writers are strict: they follow the format's documentation.
"""
