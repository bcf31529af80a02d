"""Tiny but real model and tokenizer for the demo and the tests."""
