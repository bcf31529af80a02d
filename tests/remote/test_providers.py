"""Boxes that are found by the names of their instances, over https, with the published shapes of Lambda's API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_tui import cli
from grpo_tui.box.fleet import Fleet, priced_and_placed
from grpo_tui.kit.ending import _print_clean
from remote import providers
from remote.base import BoxesError, Refused, Unreachable
from remote.boxes import Box, Provider, add_box, parse_boxes
from remote.events import Link
from remote.providers import ProviderError, instances, last_seen, list_instances, located
from remote.transports.choice import attach_argv
from tests.support.agent import connected, eventually
from tests.support.canaries import ProcessWatch
from tests.support.clock import LeapingClock, TestClock
from tests.support.lambda_api import LambdaApi, instance
from tests.support.sshd import Sshd


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LambdaApi]:
    """Its earlier answer is as good as old when it will give another one."""

    def forget() -> None:
        for account in providers._accounts.values():
            account.asked_at = None

    with LambdaApi(tmp_path) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        server.on_change = forget
        yield server


def provider_of(api: LambdaApi, **fields: str) -> Provider:
    return Provider("lambda", str(api.key_file), url=api.url, **fields)


def box_of(api: LambdaApi, **fields: Any) -> Box:
    return Box("h200-a", provider=provider_of(api), **fields)


def test_instances_have_type_region_state_address_and_price(api: LambdaApi) -> None:
    api.instances = [instance("h200-a", "192.0.2.10"), {"id": "x", "status": "booting"}]
    first, second = list_instances(provider_of(api))
    assert (first.name, first.type, first.region) == ("h200-a", "gpu_1x_h100_sxm5", "us-east-3")
    assert (first.state, first.address, first.price_per_hour) == ("active", "192.0.2.10", 3.29)
    assert (second.name, second.state, second.address, second.price_per_hour) == ("", "booting", "", None)
    assert api.requests == ["/api/v1/instances"]


@pytest.mark.parametrize(
    ("listed", "outcome"),
    [
        ([("h200-a", "192.0.2.10", "active")], "192.0.2.10"),
        ([("h200-a", "192.0.2.9", "terminated"), ("h200-a", "192.0.2.10", "unhealthy")], "192.0.2.10"),
        ([("h200-a", None, "booting")], Unreachable("the instance 'h200-a' is booting and has no address yet")),
        ([("h200-a", "-oProxyCommand=x", "active")], Unreachable("has no address yet")),
        ([("h200-a", "192.0.2.9", "terminated")], Refused("the instance 'h200-a' is terminated; rent another")),
        ([("h200-b", "192.0.2.9", "active")], Refused("no instance named 'h200-a'; did you mean h200-b")),
        ([], Refused("this account has none with a name")),
        ([("h200-a", "192.0.2.9", "active"), ("h200-a", "192.0.2.10", "booting")], Refused("2 instances are named")),
    ],
)
def test_the_address_of_a_name(api: LambdaApi, listed: list[Any], outcome: object) -> None:
    api.instances = [instance(*fields) for fields in listed]
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome), match=str(outcome)):
            located(box_of(api))
    else:
        assert located(box_of(api)).host == outcome
    assert located(Box("other", host="192.0.2.1")).host == "192.0.2.1"


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (401, "provider_key", Refused, "HTTP 401, No. Try this.: the API key is not accepted"),
        (403, "provider_key", Refused, "may not do that"),
        (404, "provider_reply", Refused, "correct 'url'"),
        (400, "provider_reply", Refused, "HTTP 400, No. Try this."),
        (500, "provider_unreachable", Unreachable, "the provider has a problem"),
        (503, "provider_unreachable", Unreachable, "try again later"),
    ],
)
def test_what_a_status_means(api: LambdaApi, status: int, code: str, kind: type[Exception], words: str) -> None:
    for _ in range(2):
        api.refuse(status, "global/unknown", "No.", "Try this.")
    with pytest.raises(ProviderError, match=words) as caught:
        instances(provider_of(api))
    assert caught.value.code == code
    with pytest.raises(kind):
        located(box_of(api))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>log in</html>", r"not answer with JSON but with text/html \(19 bytes\): “log in”; a proxy or a login"),
        (b'{"data": 1}', "not answer with a list of instances"),
        (b'{"data": [{"name": "no id"}]}', "not answer with a list of instances"),
        (b"[]", "not answer with a list of instances"),
        (b"[" * 100_000, "not answer with JSON"),
    ],
)
def test_answers_of_another_kind(api: LambdaApi, body: bytes, words: str) -> None:
    api.plan(200, body, Content_Type="text/html")
    with pytest.raises(ProviderError, match=words) as caught:
        instances(provider_of(api))
    assert caught.value.code == "provider_reply"


PAGE = b"""<!DOCTYPE html><html><head><title>Blocked by ACME</title><style>p {}</style></head>
<body><h1>Blocked by ACME</h1><p>Category:&nbsp;cloud. Ask
<b>it@acme.example</b></p><script>track()</script></body></html>"""


@pytest.mark.parametrize("status", [200, 302, 401, 403, 404, 407, 429, 502])
@pytest.mark.parametrize(
    ("page", "words"),
    [(PAGE, "“Blocked by ACME · Category: cloud. Ask it@acme.example”"), (b"denied\x1b[2J by squid\n", "by squid”")],
)
def test_a_page_of_a_proxy_is_not_the_answer(api: LambdaApi, status: int, page: bytes, words: str) -> None:
    api.plan(status, page, Content_Type="text/html", Retry_After="60")
    with pytest.raises(ProviderError) as caught:
        instances(provider_of(api))
    said = str(caught.value)
    assert words in said
    assert "a proxy or a login page may be in between" in said
    assert caught.value.code == {429: "provider_busy", 502: "provider_unreachable"}.get(status, "provider_reply")
    assert not any(wrong in said for wrong in ("of this API key", "not accepted", "\x1b", "track", "p {}"))


@pytest.mark.parametrize("page", [b"", b'{"detail": "no"}', b'{"error": "no"}'])
def test_a_status_without_the_words_of_the_api(api: LambdaApi, page: bytes) -> None:
    api.plan(403, page)
    with pytest.raises(ProviderError, match="HTTP 403: the account of this API key may not do that"):
        instances(provider_of(api))


def test_a_redirect_does_not_get_the_key(api: LambdaApi, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with LambdaApi(tmp_path / "other") as other:
        api.plan(302, b"", Location=f"{other.url}/instances")
        with pytest.raises(ProviderError, match="redirects, and the API key does not follow"):
            instances(provider_of(api))
        assert other.requests == []


@pytest.mark.parametrize("after", ["0", "", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_request_is_repeated_after_429(api: LambdaApi, after: str) -> None:
    api.instances = [instance("h200-a", "192.0.2.10")]
    api.plan(429, {"error": {"code": "global/rate-limit"}}, Retry_After=after)
    clock = LeapingClock()
    assert [each.name for each in instances(provider_of(api), clock=clock)] == ["h200-a"]
    assert len(api.requests) == 2


@pytest.mark.parametrize(("after", "asked"), [("0", providers.TRIES), ("3600", 1)])
def test_429_is_not_repeated_for_long(api: LambdaApi, after: str, asked: int) -> None:
    for _ in range(providers.TRIES):
        api.plan(429, b"", Retry_After=after)
    with pytest.raises(ProviderError, match="asked too often") as caught:
        instances(provider_of(api), clock=LeapingClock())
    assert (caught.value.code, len(api.requests)) == ("provider_busy", asked)


def test_a_client_that_closes_does_not_wait(api: LambdaApi) -> None:
    api.plan(429, b"", Retry_After="25")
    with pytest.raises(ProviderError, match="closed"):
        instances(provider_of(api), lambda: True)


def test_boxes_of_an_account_share_one_answer_for_a_while(api: LambdaApi) -> None:
    clock = TestClock()
    api.instances = [instance("h200-a", "192.0.2.10"), instance("b", "192.0.2.11")]
    assert located(box_of(api), clock=clock).host == "192.0.2.10"
    assert located(dataclasses.replace(box_of(api), name="b"), clock=clock).host == "192.0.2.11"
    assert len(api.requests) == 1
    clock.advance(providers.FRESH_S)
    assert located(box_of(api), clock=clock).host == "192.0.2.10"
    assert len(api.requests) == 2


def test_no_network_and_a_certificate_of_nobody(api: LambdaApi, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = dataclasses.replace(provider_of(api), url="https://localhost:1/api/v1")
    unknown = dataclasses.replace(provider_of(api), url="https://nobody.invalid/api/v1")
    for provider in (closed, unknown):
        with pytest.raises(ProviderError, match=r"cannot be reached: .*; check this machine's network"):
            instances(provider)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ProviderError, match="certificate is not valid: self-signed certificate"):
        instances(provider_of(api))
    assert api.requests == []


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        ("secret_x\n", 0o644, "other accounts can read this API key; run  chmod 600"),
        ("", 0o600, "not an API key"),
        ("two words", 0o600, "not an API key"),
        ("secret_\x7fx", 0o600, "not an API key"),
        (None, 0o600, "file not found"),
    ],
)
def test_key_files(api: LambdaApi, content: str | None, mode: int, words: str) -> None:
    api.key_file.unlink()
    if content is not None:
        api.key_file.write_text(content)
        api.key_file.chmod(mode)
    with pytest.raises(ProviderError, match=words) as caught:
        instances(provider_of(api))
    assert (caught.value.code, api.requests) == ("provider_key", [])
    assert not content or content.strip() not in str(caught.value).replace(str(api.key_file), "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{kind: lambda}", "boxes.yaml:3: 'provider': 'key_file' is missing"),
        ("{kind: aws, key_file: x}", "'kind' must be lambda, not 'aws'"),
        ("{kind: lambda, key_file: x, name: y}", "unknown key 'name'"),
        ("{kind: lambda, api_key: secret_x}", "belongs into a file of its own"),
        ("{kind: lambda, key_file: x, url: 'http://a'}", "'url' must be an address that starts with https://"),
        ("{kind: lambda, key_file: [x]}", "'key_file' must be a string"),
        ("lambda", "expected its kind and the file"),
        ("{kind: lambda, key_file: x}\n    host: 192.0.2.1", "give 'provider' alone"),
    ],
)
def test_mistakes_in_boxes_yaml(text: str, words: str) -> None:
    with pytest.raises(BoxesError, match=words) as caught:
        parse_boxes(f"boxes:\n  - name: a\n    provider: {text}\n")
    assert "secret_x" not in str(caught.value)


def test_a_box_with_a_provider_is_written_and_read(tmp_path: Path) -> None:
    box = Box("h200-a", user="ubuntu", provider=Provider("lambda", "~/.lambda", "training node"))
    file = add_box(tmp_path / "boxes.yaml", box)
    assert parse_boxes(file.read_text()) == [box]
    assert box.address() == "ubuntu@lambda:training node"


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_a_box_is_followed_to_its_new_address(
    api: LambdaApi, tmp_path: Path, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Booting, active, then at another address: the client goes where the name leads. A new key is explained."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "sshd").mkdir()
    with Sshd(tmp_path / "sshd", extra="ListenAddress 127.0.0.2\n", knows_agent=True) as sshd:
        box = box_of(api, port=sshd.port, user=sshd.user, key=str(sshd.user_key), transport=transport)
        kind, blob = Path(f"{sshd.host_key}.pub").read_text().split()[:2]
        (tmp_path / "hosts").write_text(f"h200-a {kind} {blob}\n")
        api.instances = [instance("h200-a", None, "booting")]
        with connected(box, host_keys_file=tmp_path / "hosts", reconnects=True) as (client, recorder):
            assert "is booting" in recorder.wait_link(Link.LOST).detail
            api.instances = [instance("h200-a", "127.0.0.1")]
            assert "127.0.0.1" in recorder.wait_link(Link.CONNECTED).detail
            assert (attach_argv(box, "run")[-2], last_seen(box).state) == ("127.0.0.1", "active")  # type: ignore[union-attr]
            api.instances = [instance("h200-a", "127.0.0.2")]
            last_id = api.instances[0]["id"]
            mark = recorder.mark()
            sshd.stop()
            recorder.wait_link(Link.LOST, after=mark)
            sshd.start()
            assert "127.0.0.2" in recorder.wait_reconnected(mark).detail
            for ids, words in ((1, "it was rented again, so its key is new"), (0, "and the same as before")):
                api.instances = [{**api.instances[0], "id": f"id-{ids}" if ids else last_id}]
                mark = recorder.mark()
                sshd.new_host_key()
                client.reconnect_now()
                assert words in recorder.wait_link(Link.REFUSED, after=mark).detail


def test_a_fleet_has_states_and_prices(api: LambdaApi) -> None:
    api.instances = [instance("h200-a", None, "booting"), instance("here", "192.0.2.3", "active")]
    here = dataclasses.replace(box_of(api), name="here", price_per_hour=1.0)
    fleet = Fleet([box_of(api), here], "here")
    fleet.start()
    try:
        eventually(lambda: (glance := fleet.glance("h200-a")) is not None and "is booting" in glance.problem)
        glance = fleet.glance("h200-a")
        assert glance is not None
        assert (glance.instance, glance.price_per_hour, glance.address) == ("booting", 3.29, "lambda:h200-a")
        assert last_seen(here).address == "192.0.2.3"  # type: ignore[union-attr]
        api.refuse(503, "global/away", "Maintenance.")
        with pytest.raises(ProviderError):
            instances(provider_of(api))
        price, address, state = priced_and_placed(here, 0.0)
        assert (price, address) == (1.0, "192.0.2.3"), "as it was said last"
        assert state.startswith("? (")
        assert "HTTP 503, Maintenance." in state
    finally:
        fleet.close()


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    done = capsys.readouterr()
    return code, done.out, done.err


def test_grpo_tui_instances(api: LambdaApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(add_box(tmp_path / "boxes.yaml", box_of(api)))
    api.instances = [instance("h200-a", "192.0.2.10"), instance("alien\x1b[2J", None, "booting")]
    code, out, _ = command(capsys, "instances", "--boxes", file)
    assert (code, out.splitlines()[0].split()) == (
        0, ["instance", "type", "region", "state", "address", "$/h", "box"],
    )  # fmt: skip
    expected = ["h200-a", "gpu_1x_h100_sxm5", "us-east-3", "active", "192.0.2.10", "$3.29", "h200-a"]
    assert expected in [line.split() for line in out.splitlines()]
    assert "\x1b" not in out
    code, out, _ = command(capsys, "instances", "--json", "--boxes", file)
    assert [(row["name"], row["box"], row["provider"]) for row in json.loads(out)][1] == ("h200-a", "h200-a", "lambda")
    assert "jupyter" not in out
    api.key_file.chmod(0o640)
    api.on_change()
    assert command(capsys, "instances", "--boxes", file)[0] == 2
    empty = str(add_box(tmp_path / "others.yaml", Box("x", host="192.0.2.1")))
    code, _, errors = command(capsys, "instances", "--boxes", empty)
    assert (code, "has a 'provider'" in errors) == (2, True)


def test_the_key_is_shown_nowhere(
    api: LambdaApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in command lines, output, errors, files or a crash report; also where the server repeats it."""
    places = {name: tmp_path / name for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    for name, place in places.items():
        monkeypatch.setenv(name, str(place))
    file = str(add_box(places["XDG_CONFIG_HOME"] / "boxes.yaml", box_of(api)))
    said = ""
    with ProcessWatch({"key": api.key}) as watch:
        for status in (401, 403, 500):
            for words in (["instances"], ["boxes"], ["doctor", "--box", "h200-a"]):
                for _ in range(2):
                    api.refuse(status, "global/unknown", f"the key {api.key} is bad", api.key)
                said += "".join(map(str, command(capsys, *words, "--boxes", file)))
                api.planned.clear()
        with monkeypatch.context() as broken:
            broken.setattr(json, "loads", lambda text: 1 / 0)
            try:
                list_instances(provider_of(api))
            except ZeroDivisionError as error:
                _print_clean(type(error), error, error.__traceback__)
        said += capsys.readouterr().err
    assert "the key [key] is bad" in said
    assert "ZeroDivisionError" in said
    assert api.key not in said
    assert (watch.shown, watch.environments) == (set(), set())
    files = [path for place in places.values() for path in place.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if api.key.encode() in path.read_bytes()]
