"""Transports: how a stream of bytes to an agent is opened, one implementation per file."""
