#!/bin/bash
# ./run_model_comparison.sh --batch-service openai-conversation     the same as: scripts/run_model_comparison.sh
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/run_model_comparison.sh" "$@"
