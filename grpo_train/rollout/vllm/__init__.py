"""``rollout.backend: vllm``: completions from vLLM servers, which run in an environment of their own."""
