"""Checkpoints as models that load elsewhere: adapter or merged weights, chat template, model card, push to the hub."""
