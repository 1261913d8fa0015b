"""Tasks of lm-eval, the evaluation harness of EleutherAI, on a model in any layout."""
