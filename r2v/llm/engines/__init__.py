"""Serving engines: vLLM servers for the policy, the verifier and an open-weights teacher, with R2V's keyed sampling."""
