"""R2V: distil a recorded LLM teacher into a small policy, verify its steps, route the hard ones back.

Importing this package does nothing: no torch, no configuration, no output. Start reading at
`r2v/pipeline/jobs.py`, whose JOBS table is the product in eleven rows.
"""

__version__ = "0.1.0"
