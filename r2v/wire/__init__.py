"""Wire formats: Chat Completions, Responses and Messages, each read and written in one module and nowhere else.

    chat, responses, anthropic     requests, replies, streams and usage of one format
    message, exchange              what all three hold: messages with parts, tools; a request, a reply, token counts
    errors                         an error by its structure: status, code, shape
    actions                        a reply as actions and a thought, in whichever form the model gave them
    sse, text                      server-sent events; text that every server takes

Readers are tolerant: fields, parts, items and tools that R2V does not know are kept as they came, so that writing what
was read gives the same JSON. Writers are exact: they write what the format's documentation asks for.
"""
