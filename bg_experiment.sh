#!/bin/bash
# ./bg_experiment.sh SPEC [training|simulation]     run an experiment that outlives this terminal; then:
#   python3 scripts/run_background.py --list
#   python3 scripts/run_background.py --stop NAME
spec="${1:?which specification? ./bg_experiment.sh SPEC [training|simulation]}"
mode=()
case "${2:-}" in '' | -*) ;; *) mode=(--mode "$2") ;; esac
exec python -m r2v experiments background --experiment "$spec" "${mode[@]}" "${@:$((2 + ${#mode[@]} / 2))}"
