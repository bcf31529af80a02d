"""What ssh asks: passphrases, codes, and keys to touch, each once."""

from __future__ import annotations

import os
import sys

import pytest

from remote.client import BoxClient
from remote.events import Link, QuestionAsked, QuestionWithdrawn
from tests.support.agent import Recorder, connected
from tests.support.proxy import ChaosProxy
from tests.support.ssh_lab import CONNECT, SECRET, TWO_FACTORS, Lab, box_of, folders, options, pam_secret, processes


def _questions(recorder: Recorder) -> list[QuestionAsked]:
    return [event for event in recorder.events if isinstance(event, QuestionAsked)]


def _wait_questions(recorder: Recorder, count: int) -> None:
    recorder.wait(lambda _: len(_questions(recorder)) == count, 30)


def test_a_passphrase_is_asked_once_a_session(place: Lab) -> None:
    server = place.server()
    key = place.key("locked", server, passphrase=SECRET)
    with ChaosProxy(server.port) as proxy:
        place.know(f"[127.0.0.1]:{proxy.port}", server)
        config = place.config(server, f"Port {proxy.port}", f"IdentityFile {key}", key=False)
        with connected(box_of(place), **options(place, config), reconnects=True) as (client, recorder):
            question = recorder.wait_for(QuestionAsked, 30)
            assert (question.kind, question.echo) == ("passphrase", False)
            assert str(key) in question.text
            client.answer_question("wrong")
            recorder.wait(lambda _: len(_questions(recorder)) == 2, 30)
            assert _questions(recorder)[1].text == f"Wrong passphrase.\n{question.text}"
            client.answer_question(SECRET)
            recorder.wait_link(Link.CONNECTED, 30)
            mark = recorder.mark()
            proxy.reset()
            recorder.wait_link(Link.LOST, after=mark)
            recorder.wait_link(Link.CONNECTED, 30, after=mark)
            assert len(_questions(recorder)) == 2


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser (a mount namespace)")


@needs_root
def test_a_code_is_asked_once_an_outage(place: Lab) -> None:
    server = place.server(TWO_FACTORS, files=pam_secret(place.folder))
    with ChaosProxy(server.port) as proxy:
        place.know(f"[127.0.0.1]:{proxy.port}", server)
        config = place.config(server, f"Port {proxy.port}")
        with connected(box_of(place), **options(place, config), reconnects=True) as (client, recorder):
            assert recorder.wait_for(QuestionAsked, 30).kind == "prompt"
            proxy.reset()  # while the user looks for the code
            client.answer_question(SECRET)
            refused = recorder.wait_link(Link.REFUSED, 30)
            assert refused.retry_in_s is None  # it waits for a person
            assert SECRET not in str(recorder.events)
            assert len(_questions(recorder)) == 1
            client.reconnect_now()
            recorder.wait(lambda _: len(_questions(recorder)) == 2, 30)
            client.answer_question(SECRET)
            recorder.wait_link(Link.CONNECTED, 30)
            mark = recorder.mark()
            proxy.reset()  # the next outage
            recorder.wait(lambda _: len(_questions(recorder)) == 3, 30)
            client.answer_question(None)
            assert "not answered" in recorder.wait_link(Link.REFUSED, 30, after=mark).detail


@needs_root
def test_a_wrong_code_does_not_cost_the_passphrase(place: Lab) -> None:
    server = place.server(TWO_FACTORS, files=pam_secret(place.folder))
    key = place.key("locked", server, passphrase=SECRET)
    config = place.config(server, f"IdentityFile {key}", key=False)
    with connected(box_of(place), **options(place, config)) as (client, recorder):
        for count, (kind, answer) in enumerate(
            [("passphrase", SECRET), ("prompt", "wrong"), ("prompt", None), ("prompt", SECRET)], start=1
        ):
            _wait_questions(recorder, count)
            assert _questions(recorder)[-1].kind == kind
            client.answer_question(answer)
            if answer is None:
                recorder.wait_link(Link.REFUSED, 30)
                client.reconnect_now()
        recorder.wait_link(Link.CONNECTED, 30)
        assert "may be wrong" in _questions(recorder)[2].text
        assert "may be wrong" not in _questions(recorder)[3].text


@needs_root
def test_closing_with_an_open_question(place: Lab) -> None:
    server = place.server(TWO_FACTORS, files=pam_secret(place.folder))
    recorder = Recorder()
    client = BoxClient(box_of(place), recorder, **options(place, place.config(server)))
    client.start()
    recorder.wait_for(QuestionAsked, 30)
    client.close()
    assert not processes(place)
    assert not folders(place)


def test_a_key_to_touch_is_announced_while_it_waits(place: Lab) -> None:
    """ssh runs its askpass program with SSH_ASKPASS_PROMPT=none and ends it; here a ProxyCommand does the same."""
    server = place.server()
    script, announced = place.folder / "touch.sh", place.folder / "announced"
    connect = place.folder / "connect.py"
    connect.write_text(CONNECT)
    script.write_text(
        "#!/bin/sh\nSSH_ASKPASS_PROMPT=none $SSH_ASKPASS 'Confirm user presence for key' </dev/null >/dev/null &\n"
        f'while [ ! -e {announced} ]; do sleep 0.05; done; kill $!; exec {sys.executable} {connect} "$@"\n'
    )
    config = place.config(server, f"ProxyCommand sh {script} %h %p")
    with connected(box_of(place), **options(place, config)) as (_, recorder):
        assert recorder.wait_for(QuestionAsked, 30).kind == "touch"
        announced.touch()
        recorder.wait_for(QuestionWithdrawn, 30)
        recorder.wait_link(Link.CONNECTED, 30)
