"""Show the waves: a few short conversations, with a line for every wave sent and received.

    python examples/test_conversation_batching.py --interactions 5 --messages 2 --batch-service openai-conversation \
        --model gpt-3.5 --batch-size 5 --max-concurrent 5
"""

from r2v.cli.game.commands import run_script

if __name__ == "__main__":
    run_script(service="openai-conversation", interactions=5, messages=2, name="conversation_test")
