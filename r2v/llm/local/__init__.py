"""Inference with a causal language model in this process: prefill, prefix cache, batched keyed decoding."""
