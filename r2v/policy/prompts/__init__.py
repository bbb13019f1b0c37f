"""Prompts of the policy: chat templates, what is left out of a long conversation, token ids."""
