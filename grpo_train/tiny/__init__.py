"""A tiny but real model and its tokenizer, made by the product itself for the demo and the tests."""
