#!/bin/bash
# Let models play the Secret Game against each other, every pair both ways, and compare them:
#   ./run_model_comparison.sh --batch-service openai-conversation --interactions 20 --messages 3 \
#       --batch-size 20 --max-concurrent 15
# Without --models: gpt35 and gpt4o_mini, claude_opus and claude_sonnet, or all four, as the service's provider has it.
exec python -m r2v game run --overrides compare=true "$@"
