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
- A connection *must* need one session only, so that ``MaxSessions 1`` works, and one round trip after the login where
  the box has the agent.
- A disk that cannot store the agent *must not* prevent a connection (:mod:`remote.agent.from_memory`).

**While it stands.** These rules hold under any fault of the network, the agent or this machine:

- The link *must* come back without a person, and *must not* be shown as connected once nothing has arrived for 5 s.
- An agent *must* end within 15 s of its client's end, or of the last byte that it received from it.
- A clock that is set, here (on Linux) or on the box, *must not* end a connection. The difference *must* be measured
  with the next pong, as exactly as its round trip allows.
- Time in which this machine was suspended *must not* count as a wait for an answer that only this machine gives.

**What happened.** These rules hold for launch, resume, evaluate, stop and kill:

- A request with an idempotency key *must* be carried out at most once, whoever is killed when, and its repetition
  *must* get the answer that agrees with the box (:mod:`remote.agent.once`).
- The app *must* keep such a request until it is answered, over a restart, and tell the user what became of it.
- A job whose tmux pane is dead *must not* be reported as starting, and a killed run *must not* stay lost
  (:mod:`remote.agent.start`).
- A process of another boot *must not* be taken for one of a run, whatever its number.
- Ages *must* be right within 2 s of the next pong, also of what was written before the box's clock was set.
- A job *must* be started from an argument vector that no login shell parses.
- A full disk *must not* prevent a stop or a kill.

**Followed logs.** These rules hold for every file that a run writes:

- Each byte from the cursor on *must* arrive once, in order. Another file at the path, or the same one truncated and
  written again, *must* be reported as rotated before its first byte; one restored while the link was down continues.
- While a subscription stands, a renamed file *must* be read to its end before its successor is begun.
- The opened file, not its path, *must* be a regular file on a disk and inside the root (:mod:`remote.agent.follow`).
- An older client or agent *must* keep working: a field of a cursor that it does not have is unknown.

**What a box may send.** The client does not trust it:

- One byte of a log beyond the granted credit *must* end the connection, and so *must* anything else beyond the
  allowance (:mod:`remote.transports.transport`: 32 MiB at once, then 2 MiB/s, each frame at least 4 KiB). Such a flood
  waits the longest back-off, and its reason is shown.
- A line *must* stay below 64 KiB, a frame in parts within 16 MiB and 500,000 values. The cost *must* be linear in the
  bytes received.
- A frame *must not* raise anything but ProtocolError. A response that nobody waits for is dropped.
- A log without end, within its credit, *must* take bounded memory and leave half of a core.
- What waits for the app *must* be bounded, however long it does not read. Of standard error, the last 8 KiB are kept.
- Closing *must* take less than a second, and a connection *must* leave no descriptor and no thread behind.

**What passes to the app.** Everything from a box passes one gate, :mod:`remote.gate`:

- Text *must* be clean: no escape sequence, control character, bidirectional control or line separator is left. A name
  *must* be 1 to 255 printable characters.
- A number *must* be finite or written as the logs write NaN and Infinity, a list *must* end after 10,000 items, and
  JSON *must not* be nested more than 32 deep.
- A row that does not pass *must* become a row that says so with the reason, and the other rows *must* stay. A topic
  that cannot be read *must* keep its last value, and the app *must* show its age.
- Nothing behind the gate *may* raise on what a box sent.

**SSH as ssh does it.** With ``transport: auto`` and an OpenSSH client on this machine:

- The link *must* connect where ``ssh NAME`` runs commands, and nowhere else. docs/ssh.md lists what was tried. Where
  ssh and the box have no algorithm in common, ``auto`` *may* use paramiko (:mod:`remote.transports.fallback`), but
  *must not* get around the user's algorithms, known_hosts or jump hosts.
- A host key *must* be the box's own in our known_hosts or, if there is none, a known one of the user's. Another key,
  and one that any file revokes, *must* be a hard stop that names file and line. A new key *must* be stored in our file
  alone, after the user's answer and once its signature was verified.
- An answer to a question *must not* be logged or written to disk, and only passphrases *may* be kept, until the client
  is closed. After one login with questions, the next *must* wait for a person until a connection has succeeded.
- The account's shell *must* see one constant command; everything else *must* travel over standard input.
- When the client is closed or killed, no ssh, control socket or agent of it *may* stay.
"""
