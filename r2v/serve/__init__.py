"""A server in front of agents: it records what they ask an LLM, and routes between a small model and the LLM.

    endpoints              the models behind it: addresses, keys, prices
    body, headers          a client's request, changed by no byte more than is told
    sessions               which conversation a request belongs to
    forwarding             one request to the LLM and its answer back, as it arrives
    books                  what each request may cost and has cost, and the caps
    traffic, recording     a line per turn, without its words; the words, for those who may read them
    app, server            routes, keys and limits; the process

Chat Completions, Responses and Messages are forwarded in their own format; nothing is translated.
"""
