"""Server in front of agents: it records their requests to an LLM, and routes between a small model and the LLM.

    endpoints              the models behind it: addresses, keys, prices
    body, headers          edits to a client's request that leave all other bytes unchanged
    sessions               assignment of requests to conversations
    forwarding             one request to the LLM, and its reply to the client as it arrives
    books                  reserved and billed USD of each request, and the caps
    traffic                a line per turn without text; the text, if it is recorded
    app, server            routes, keys and limits; the process

Chat Completions, Responses and Messages are forwarded in their own format; nothing is translated.
"""
