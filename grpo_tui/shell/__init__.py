"""Commands of ``grpo-tui`` that work on a box without the app. Exit codes: 0 done, 1 failed, 2 usage error."""
