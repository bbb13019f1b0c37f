"""Tasks of BrowserGym in a real Chromium: MiniWoB++, WebArena, and any other `browsergym/*` id.

`benchmark` and `tools` are R2V's side; `world`, `launching` and `observing` are imported only in a worker
(r2v.envs.worker), which has playwright and BrowserGym.
"""
