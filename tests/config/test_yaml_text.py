"""YAML from any hand: one exception with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_train.backup.backup_yaml import DestinationError, parse_destinations
from grpo_train.config import ConfigError, load_config
from grpo_train.config.yaml_text import InvalidYaml, compose_yaml, load_yaml, read_plain_config, value_of
from grpo_tui.files import AlarmsError, read_user_file
from remote.base import BoxesError
from remote.boxes import parse_boxes

WIDE = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
BAD = {
    "a: {b: 1": (1, "invalid YAML"),
    "a: 1\nb: \0": (2, "character #x0000 is not allowed"),
    "a: 1\nb: 2026-13-45": (2, "not a valid timestamp"),
    "a: !!bool 7": (1, "not a valid bool"),
    "a: !!int ''": (1, "not a valid int"),
    f"a: {'9' * 5_000}": (1, "not a valid int"),
    "a: !!python/object:os.system 1": (1, "could not determine a constructor"),
    "? [1]\n: 2": (1, "unhashable"),
    "a: 1\nb: {c: 1, c: 2}": (2, "duplicate key 'b.c' (first defined on line 2)"),
    "a: 1\n&b b: &c [*c]": (2, "more than 64 levels deep"),
    "[" * 200 + "]" * 200: (1, "more than 64 levels deep"),
    "[" * 5_000 + "]" * 5_000: (1, "more than 64 levels deep"),
    WIDE: (1, "more than 100,000 values"),
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:20])
def test_one_error_with_the_line(text: str) -> None:
    line, reason = BAD[text]
    with pytest.raises(InvalidYaml) as caught:
        load_yaml(text)
    assert (caught.value.line, reason in str(caught.value)) == (line, True)


def test_what_is_valid_is_what_pyyaml_reads() -> None:
    text = "a: &a {x: 1, y: [2.5, ~, no]}\nb: *a\nc: {<<: *a, z: 2026-01-02}\n"
    import yaml

    assert load_yaml(text) == yaml.safe_load(text)
    assert load_yaml("") is load_yaml("# nothing\n") is None
    node = compose_yaml("a: [1, 2]")
    assert node is not None
    assert value_of(node.value[0][1]) == [1, 2]


@pytest.mark.parametrize("text", ["[" * 5_000, "{'a':" * 5_000, WIDE, "a: \0", "a: 1\na: 2"], ids=range(5))
def test_every_file_of_a_user_is_read_so(text: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"f\.yaml"):
        load_config(text, source=str(file))
    with pytest.raises(DestinationError, match=r"f\.yaml:"):
        parse_destinations(text, str(file))
    with pytest.raises(BoxesError, match=r"f\.yaml:"):
        parse_boxes(text, str(file))
    with pytest.raises(AlarmsError, match=r"f\.yaml:"):
        read_user_file(file, AlarmsError)


def test_a_value_that_is_none_of_its_type() -> None:
    with pytest.raises(BoxesError, match=r"b\.yaml:3: 'port': invalid YAML: not a valid timestamp"):
        parse_boxes("boxes:\n  - name: a\n    port: 2026-13-45\n", "b.yaml")
    with pytest.raises(BoxesError, match=r"duplicate key 'boxes\.0\.env\.OK' \(first defined on line 3\)"):
        parse_boxes("boxes:\n  - name: a\n    env: {OK: 1, OK: 2}\n", "b.yaml")


@pytest.mark.parametrize("content", [b"\xff", b"a: {b: 1", b"- a", b""])
def test_an_unreadable_config_has_no_values(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    assert read_plain_config(tmp_path / "config.yaml") == {}
