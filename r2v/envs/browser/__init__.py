"""Tasks of BrowserGym in a real Chromium: MiniWoB++, WebArena, and any other `browsergym/*` id.

`benchmark` and `tools` are R2V's side; `world`, `launching` and `observing` run in a worker (r2v.envs.worker), where
playwright and BrowserGym are, and are imported by nothing else.
"""
