"""``grpo-tui mcp``: what an assistant may do, through the same requests as the app."""
