"""What a store refuses: named with its source, before a file is read, and never repeated."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import botocore.auth
import pytest
from botocore.exceptions import ClientError, SSLError

from grpo_train.backup import s3_requests
from grpo_train.backup.access import Access
from grpo_train.backup.destinations import open_destination
from grpo_train.backup.s3 import S3Store
from grpo_train.backup.s3_errors import cause_of, date_of, retry_after
from grpo_train.backup.s3_requests import _time_of
from grpo_train.backup.store import StoreError
from tests.support.clock import LeapingClock, TestClock
from tests.support.s3_faults import Fault, Faults, FaultyRequests
from tests.support.s3_servers import KEY_ID, SECRET, client, server
from tests.support.stores import bucket_store, describe_bucket, piece_of


@pytest.fixture
def front() -> Iterator[Faults]:
    with FaultyRequests(server("rclone")) as opened:
        yield opened


@pytest.fixture
def store(front: Faults) -> S3Store:
    return bucket_store(front.server, front.server.new_bucket(), port=front.port)


def refused(call: Callable[[], object]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        call()
    for secret in (KEY_ID, SECRET, "wrong-secret", "wrong-key-id"):
        assert secret not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    return caught.value


@pytest.mark.parametrize("status", [200, 302, 403, 404])
def test_a_page_of_a_proxy_is_not_the_stores_answer(front: Faults, store: S3Store, status: int) -> None:
    page = "<html><head><title>Blocked by ACME</title></head><body><p>Ask IT</p></body></html>"
    front.add(Fault("refuse", "GET", status=status, page=page, times=2))
    error = refused(lambda: list(store.entries("")))
    assert f"not a store's (HTTP {status}): “Blocked by ACME · Ask IT”; a proxy may be in between" in str(error)
    if status != 200:
        assert "Blocked by ACME" in str(refused(lambda: store.read_small("x", 10)))


@pytest.mark.parametrize(
    ("status", "name", "code", "message"),
    [
        (403, "InvalidAccessKeyId", "refused", "does not accept the access key ID from the test"),
        (403, "SignatureDoesNotMatch", "refused", "does not accept the secret access key from the test"),
        (400, "ExpiredToken", "refused", "the session token from the test is expired or invalid"),
        (403, "AccessDenied", "refused", "from the test have no right to write objects"),
        (401, "Unauthorized", "refused", "from the test have no right to write objects"),
        (404, "NoSuchBucket", "no_bucket", "the bucket 'bucket-"),
        (400, "AuthorizationHeaderMalformed", "wrong_region", "is not in region us-east-1"),
        (403, "QuotaExceeded", "full", "the store is full"),
        (400, "KeyTooLongError", "bad_name", "refuses the name"),
        (501, "NotImplemented", "unsupported", "put_object: the store does not have this request"),
        (418, "Teapot", "refused", "put_object: the store answers Teapot said by the front"),
    ],
)
def test_a_refusal_is_named_and_not_repeated(
    front: Faults, store: S3Store, status: int, name: str, code: str, message: str
) -> None:
    front.add(Fault("refuse", status=status, code=name))
    error = refused(lambda: store.write_small("a", b"x"))
    assert (error.code, len(front.seen)) == (code, 1)
    assert message in str(error)


def test_the_right_region_is_named(front: Faults, store: S3Store) -> None:
    front.add(
        Fault("refuse", status=301, code="PermanentRedirect", headers={"x-amz-bucket-region": "eu-north-1"}, times=9)
    )
    error = refused(lambda: store.write_small("a", b"x"))
    assert error.code == "wrong_region"
    assert "set region: eu-north-1" in str(error)


@pytest.mark.parametrize(
    ("method", "match", "right"),
    [
        ("GET", "list-type=2", "list objects (s3:ListBucket)"),
        ("PUT", "grpo-marker", "write objects (s3:PutObject)"),
        ("GET", "/grpo-marker", "read objects (s3:GetObject)"),
        ("POST", "delete", "delete objects (s3:DeleteObject)"),
    ],
)
def test_a_missing_right_is_found_at_opening(
    front: Faults, tmp_path: Path, method: str, match: str, right: str
) -> None:
    source = describe_bucket(front.server.new_bucket(), front.server, port=front.port)
    front.add(Fault("refuse", method, match, times=99, status=403, code="AccessDenied"))
    error = refused(lambda: open_destination(None, tmp_path))
    assert error.code == "refused"
    assert f"from {source} have no right to {right}" in str(error)
    assert len([method for method, _ in front.seen if method != "HEAD"]) <= 6
    assert not list(tmp_path.glob(".grpo-marker*"))


def test_a_wrong_key_or_secret_is_told_apart_by_rclone(tmp_path: Path) -> None:
    running = server("rclone")
    for key_id, secret in (("wrong-key-id-of-a-user", SECRET), (KEY_ID, "wrong-secret-of-a-user")):
        describe_bucket(running.new_bucket(), running, key_id=key_id, secret=secret)
        error = refused(lambda: open_destination(None, tmp_path))
        assert error.code == "refused"
        assert ".lambda_s3.env" in str(error)


@pytest.mark.parametrize("kind", ["rclone", "moto"])
def test_a_missing_bucket_is_named(kind: str, tmp_path: Path) -> None:
    describe_bucket("never-made", server(kind))
    error = refused(lambda: open_destination(None, tmp_path))
    assert error.code == "no_bucket"
    assert "'never-made'" in str(error)


def test_a_bucket_that_is_gone_midway_is_named(tmp_path: Path) -> None:
    running = server("moto")
    bucket = running.new_bucket()
    store = bucket_store(running, bucket)
    client(running.endpoint, running.ca_file).delete_bucket(Bucket=bucket)
    piece = piece_of(tmp_path / "file", b"data" * (3 << 20))
    calls: list[Callable[[], object]] = [
        lambda: store.write("a", piece),
        lambda: store.write_small("a", b"x"),
        lambda: list(store.entries("")),
        lambda: store.read_small("a", 10),
        lambda: store.delete(["a"]),
    ]
    for call in calls:
        assert refused(call).code == "no_bucket"


def test_without_credentials_the_file_is_asked_for() -> None:
    store = bucket_store(server("rclone"), "any", access=Access("the environment or ~/.aws"))
    error = refused(lambda: store.write_small("a", b""))
    assert error.code == "refused"
    assert "name it with 'credentials'" in str(error)


SSO = """[sso-session s]
sso_region = us-east-1
sso_start_url = https://example.com
sso_registration_scopes = a
[default]
sso_session = s
sso_account_id = 1
sso_role_name = r
"""


@pytest.mark.parametrize(("text", "variable", "message"), [
    ("\ufeff[default]\nregion = us-east-1\n", {}, "Unable to parse config file: .*/.aws/config"),
    (SSO, {}, "SSO"),
    ("", {"AWS_PROFILE": "nope"}, "profile .nope. could not be found"),
    ("", {"AWS_ENDPOINT_URL": "files.example.com"}, "Invalid endpoint: files.example.com"),
    ("[default]\nregion = us east\n", {}, "region"),
])  # fmt: skip
def test_what_boto_cannot_use_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str, variable: dict[str, str], message: str
) -> None:
    """One line where boto3's own sources are used, and nothing where the credentials are given."""
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(text)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    s3_requests._session.cache_clear()
    error = refused(lambda: S3Store(Access("the environment or ~/.aws"), bucket="any").write_small("a", b"x"))
    assert error.code == "refused"
    assert re.search(message, str(error))
    assert "correct the environment or ~/.aws" in str(error)
    running = server("rclone")
    bucket_store(running, running.new_bucket()).write_small("a", b"x")


def test_a_store_that_cannot_list_uploads(front: Faults, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Said once; whatever was cut is sent again."""
    store = bucket_store(front.server, front.server.new_bucket(), port=front.port, clock=TestClock())
    front.add(Fault("refuse", "GET", "uploads", times=99, status=501, code="NotImplemented"))
    store.write("a", piece_of(tmp_path / "large", b"x" * (6 << 20)))
    assert store.abort_stale_uploads("", 0.0) == 0
    (record,) = caplog.records
    assert "the store does not have this request (NotImplemented); uploads in parts" in record.message
    assert sum("uploads" in path for method, path in front.seen if method == "GET") == 1


@pytest.mark.parametrize("code", ["SlowDown", "InternalError", "ServiceUnavailable"])
def test_one_key_of_several_is_deleted_again(front: Faults, code: str) -> None:
    store = bucket_store(front.server, front.server.new_bucket(), port=front.port, clock=LeapingClock())
    store.write_small("a", b"x")
    front.add(Fault("refuse", "POST", "delete", code=code, key="some folder/runs/a"))
    store.delete(["a"])
    assert store.head("a") is None


def test_a_bucket_must_be_named() -> None:
    error = refused(lambda: S3Store(Access("x.env", "k", "s")))
    assert (error.code, str(error)) == ("no_bucket", "no bucket: set 'bucket', or S3_BUCKET in x.env")


def test_a_wrong_clock_is_measured_by_the_store_s(front: Faults, store: S3Store) -> None:
    for offset, words in ((1_200, "20 min behind"), (-1_200, "20 min ahead of")):
        front.date_offset_s = offset
        front.add(Fault("refuse", status=403, code="RequestTimeTooSkewed"))
        error = refused(lambda: store.write_small("a", b"x"))
        assert error.code == "clock"
        assert f"{words} the store's; run: sudo timedatectl set-ntp true" in str(error)


def test_ages_are_from_the_store_s_clock(front: Faults, store: S3Store) -> None:
    store.write_small("a", b"")
    here = store.now()
    front.date_offset_s = 86_400
    store.write_small("a", b"")
    assert abs(store.now() - here - 86_400) < 3_000


def test_rclone_refuses_a_clock_that_is_20_min_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    running = server("rclone")
    now = botocore.auth.get_current_datetime
    store = bucket_store(running, running.new_bucket(), clock=TestClock(wall=time.time() + 1_200))
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **given: now(**given) + timedelta(minutes=20))
    error = refused(lambda: store.write_small("a", b"x"))
    assert error.code == "clock"
    assert "20 min ahead of the store's" in str(error)


def test_headers_that_are_not_as_promised() -> None:
    assert [date_of({"date": text}) for text in ("", "yesterday")] == [None, None]
    found = [retry_after(ClientError({"ResponseMetadata": {"HTTPHeaders": {"retry-after": text}}}, "x"))
             for text in ("2", "999", "-1", "Wed, 21 Oct 2026 07:28:00 GMT")]  # fmt: skip
    assert found == [2.0, 120.0, 0.0, 0.0]
    assert {_time_of(text).day for text in ("2026-11-03T00:00:00Z", "3 Nov 2026 00:00:00Z")} == {3}


@pytest.mark.parametrize(("status", "page"), [(200, b"<html>log in</html>"), (200, b""), (200, b"{}"), (302, b"")])
def test_an_endpoint_that_is_not_a_store(status: int, page: bytes) -> None:
    """A web page, a proxy, a redirect to https: never a traceback, and never an empty list."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page)

        do_HEAD = do_GET

        def log_message(self, *about: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{web.server_port}"
        store = S3Store(Access("a test", KEY_ID, SECRET), bucket="b", endpoint=endpoint, clock=LeapingClock())
        calls: list[Callable[[], object]] = [
            lambda: list(store.entries("")), lambda: list(store.read("k")), lambda: store.head("k"),
        ]  # fmt: skip
        for call in calls:
            assert endpoint in str(refused(call))
        web.shutdown()


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "a private authority needs 'ca_file'"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "the connection to https://s3 broke"),
    ],
)
def test_a_broken_handshake_is_no_wrong_certificate(reason: str, said: str) -> None:
    assert said in cause_of(SSLError(endpoint_url="https://s3", error=reason), "https://s3")
