"""Worlds in a child process, with an optional interpreter of their own, time limits and complete clean-up.

    spec = WorldProcess(world="mypackage.shop_world:ShopWorld", options={"base": "http://127.0.0.1:8000"})
    environment = WorkerEnvironment(WorkerPool(spec), limits=WorldLimits(step_seconds=30), tools=TOOLS)

A world is a class with JSON arguments and results that imports nothing of R2V; `boot` runs it. A world that hangs,
dies, raises or answers with too many bytes becomes a fault (`Info.env_fault`) of one line, its process tree is killed,
and the next episode gets a new process.
"""
