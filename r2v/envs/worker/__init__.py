"""Worlds in a child process: an interpreter of their own where they need one, limits, and nothing left behind.

    spec = WorldProcess(world="mypackage.shop_world:ShopWorld", options={"base": "http://127.0.0.1:8000"})
    environment = WorkerEnvironment(WorkerPool(spec), limits=WorldLimits(step_seconds=30), tools=TOOLS)

A world is a class that speaks JSON values and imports nothing of R2V; `boot` runs it. What hangs, dies, floods or
raises in there is a fault of the world (`Info.env_fault`) in one line, its whole process tree is killed, and the next
episode has a new one.
"""
