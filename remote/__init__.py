"""The link between the app and a box.

**Who may say no.** These rules hold for every transport:

- A refusal *must* rest on a whole answer: an exit status that was received together with the end marker of the script,
  the server's own authentication failure on a connection that is still active, a host key whose signature was verified,
  a whole hello, or an unusable configuration on this machine.
- Anything that ended early (end of file, a missing exit status or marker, a timeout, a damaged packet, a connection
  that is no longer active) *must* be unreachable: it is retried with back-off until it succeeds, and its message
  *must not* blame Python, keys or shells.
- A complaint that one damaged byte could cause (no common algorithm, a disconnect during the login) *must* be
  unreachable once, and is a refusal when a second connection ends in the same one.
- A refusal *must* be asked again every 5 minutes, and at once after a suspend or a change of network. A changed host
  key and a declined one *must not* be retried without a person.
- A script's answer *must not* exceed 1 MiB, and everything a box sends before its agent runs 4 MiB.
- A channel *must* be closed by both ends before the next is opened.
"""
