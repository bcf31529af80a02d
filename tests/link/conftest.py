"""The fixtures of the link's other tests."""

from tests.remote.conftest import _own_directories, box, proxy, root, ssh_box, sshd, tmux_socket

__all__ = ["_own_directories", "box", "proxy", "root", "ssh_box", "sshd", "tmux_socket"]
