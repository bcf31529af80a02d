"""The questions of one login over ssh: who answers them, and what a login that needed a person means when it ends."""

from __future__ import annotations

from collections.abc import Callable

from grpo_train.run_dir.clock import Clock
from remote.base import Refused, Unreachable
from remote.events import HostKeyAsked, MachineChanged, QuestionAsked, QuestionWithdrawn
from remote.transports.openssh_setup import BoxSsh
from remote.transports.questions import PendingQuestion
from remote.transports.transport import AskHostKey

AskQuestion = Callable[[QuestionAsked], "str | None"]
"""Called on the owner thread; blocks until the user has answered (None: dismissed). A notice returns at once."""
Announce = Callable[["QuestionWithdrawn | MachineChanged"], None]


class LoginQuestions:
    """Passes the questions of one login to the user, and their answers to ssh."""

    def __init__(
        self, ssh: BoxSsh, ask_host_key: AskHostKey, ask: AskQuestion, announce: Announce, clock: Clock
    ) -> None:
        self._ssh, self._clock = ssh, clock
        self._ask_host_key, self._ask, self._announce = ask_host_key, ask, announce
        self.refusal: Refused | None = None
        """The reason why a question was not answered."""
        self.accepted_key = False
        """Whether the user accepted a host key in this login."""
        self._asked_now = False
        self._passphrases: dict[str, str] = {}
        """Answers in this login; kept if it succeeds, or gets as far as a question of the box."""
        self._answered: set[str] = set()
        """Questions of this login."""
        self._notices: list[PendingQuestion] = []

    def descriptors(self) -> list[int]:
        """What becomes readable when ssh asks something or ends a notice."""
        return [self._ssh.questions.fileno(), *(notice.connection.fileno() for notice in self._notices)]

    def handle(self, ready: list[int]) -> float:
        """Answer what was asked on the readable descriptors; returns the seconds that the user took."""
        seconds = 0.0
        if self._ssh.questions.fileno() in ready and (prompt := self._ssh.questions.take()):
            seconds = self._answer(prompt)
        for notice in [notice for notice in self._notices if notice.connection.fileno() in ready]:
            self._withdraw(notice)
        return seconds

    def succeeded(self) -> None:
        """The keys of this login could be read: keep their passphrases for this session."""
        self._ssh.passphrases |= self._passphrases
        self._passphrases = {}

    def asked_in_vain(self, failed: Refused | Unreachable) -> Refused | Unreachable:
        """What a failed login means: one that needed a person is not repeated without one."""
        if self._ssh.asked and isinstance(failed, Unreachable):
            self._ssh.asked = False
            return Refused(f"the login ended after your answer ({failed}); reconnect to try again", "question")
        if isinstance(failed, Refused):
            self._ssh.asked = False
        return failed

    def close(self) -> None:
        """Withdraw the notices."""
        for notice in list(self._notices):
            self._withdraw(notice)

    def _answer(self, prompt: PendingQuestion) -> float:
        if prompt.kind == "touch":
            self._notices.append(prompt)
            self._ask(QuestionAsked(prompt.text.strip(), False, "touch"))
            return 0.0
        began = self._clock.monotonic()
        prompt.answer(self._answer_to(prompt))
        return self._clock.monotonic() - began

    def _answer_to(self, prompt: PendingQuestion) -> str | None:
        if prompt.kind == "host key":
            return self._host_key(prompt)
        if prompt.kind == "passphrase":
            if prompt.text in self._passphrases:  # asked again: it was wrong
                self._ssh.passphrases.pop(prompt.text, None)
            elif (known := self._ssh.passphrases.get(prompt.text)) is not None:
                self._passphrases[prompt.text] = known
                return known
        if self.refusal is not None:
            return None
        if self._ssh.asked and not self._asked_now:
            self._ssh.asked = False  # the next connection is a person's
            self.refusal = Refused(f"reconnect to answer {self._ssh.where()}: {prompt.text.strip()}", "question")
            return None
        if prompt.kind in ("password", "prompt"):
            self.succeeded()
        self._ssh.asked = self._asked_now = True
        answer = self._ask(QuestionAsked(self._text(prompt), False, prompt.kind))
        if answer is None:
            self._ssh.asked = False
            self.refusal = Refused(f"not answered: {prompt.text.strip()}", "question")
        elif prompt.kind == "passphrase":
            self._passphrases[prompt.text] = answer
        return answer

    def _text(self, prompt: PendingQuestion) -> str:
        """The question; ssh asks again without a word about the last answer."""
        again = prompt.text in self._answered
        self._answered.add(prompt.text)
        wrong = "Wrong passphrase." if prompt.kind == "passphrase" else "Asked again: the last answer may be wrong."
        return f"{wrong}\n{prompt.text.strip()}" if again else prompt.text.strip()

    def _host_key(self, prompt: PendingQuestion) -> str | None:
        found = prompt.host_key()
        if found is None:
            return "no"
        host, key_type, fingerprint = found
        if (host, fingerprint) not in self._ssh.accepted:
            box = self._ssh.box.name
            name = box if host == self._ssh.configuration.lookup else f"a jump host of {box}"
            if not self._ask_host_key(HostKeyAsked(f"{name} ({host})", key_type, fingerprint)):
                what = f"the host key of {name} ({host}) was not accepted: {key_type} {fingerprint}"
                self.refusal = Refused(what, "host_key")
                return "no"
            self._ssh.accepted.add((host, fingerprint))
            self.accepted_key = True
        return fingerprint

    def _withdraw(self, notice: PendingQuestion) -> None:
        """ssh has ended a notice."""
        self._notices.remove(notice)
        notice.connection.close()
        self._announce(QuestionWithdrawn())
