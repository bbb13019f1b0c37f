"""Play many Secret Games and analyse them; without options 100 interactions of 5 messages by the default service.

    python examples/batch_statistical_analysis.py --batch-service openai-conversation --agent-type gpt35 \
        --num-interactions 50 --messages-per-interaction 3 --batch-size 10 --max-concurrent 5
"""

from r2v.cli.game.commands import run_script

if __name__ == "__main__":
    run_script()
