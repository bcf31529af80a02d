"""Data in other files than JSONL: formats, shards, named splits, damaged files."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from grpo_train.config.schema import TaskConfig
from grpo_train.tasks import Attempt, Task, TaskError, load_task
from grpo_train.tasks.shared.data_rows import read_rows

ROWS = [{"prompt": f"What is {n} plus one?", "answer": str(n + 1), "level": n} for n in range(6)]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the format of the file's ending."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=1))
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with file.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, list(rows[0]), delimiter="\t" if file.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return file


def load(path: Path, **more: Any) -> Task:
    return load_task(TaskConfig(name="data", path=str(path), **more))


def read(file: Path, **more: Any) -> list[dict[str, Any]]:
    rows = [row for _, row in read_rows(file, **more)]
    assert all(isinstance(row, dict) for row in rows)
    return rows  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_every_format_gives_the_same_problems(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"train{suffix}", ROWS[:4])
    write(tmp_path / f"test{suffix}", ROWS[4:])
    task = load(tmp_path)
    assert [task.size(split) for split in ("train", "test")] == [4, 2]
    problem = task.problem("train", 3)
    assert (problem.question, problem.answer, problem.data) == (ROWS[3]["prompt"], "4", ROWS[3])


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "test-00000-of-00001.parquet"),
        ("data/train-00000-of-00002.csv", "data/train-00001-of-00002.csv", "data/test-00000-of-00001.csv"),
        ("train/part-0.parquet", "train/part-1.parquet", "test/part-0.parquet"),
        ("my_train_0.jsonl", "my_train_1.jsonl", "my_test_0.jsonl"),
        ("train-0.csv", "train-1.csv", "test.parquet"),
    ],
)
def test_shards_are_read_in_order(tmp_path: Path, names: tuple[str, ...]) -> None:
    for index, name in enumerate(names):
        write(tmp_path / name, ROWS[2 * index : 2 * index + 2])
    task = load(tmp_path)
    assert [task.problem("train", index).data["level"] for index in range(task.size("train"))] == [0, 1, 2, 3]
    assert task.size("test") == 2


def test_shards_without_a_split_are_one_dataset(tmp_path: Path) -> None:
    for index in range(3):
        write(tmp_path / "all" / f"part-{index:05}-of-00003.parquet", ROWS[2 * index : 2 * index + 2])
    task = load(tmp_path / "all")
    assert task.size("train") + task.size("test") == 6
    (tmp_path / "all").rename(tmp_path / "some")
    (tmp_path / "some" / "part-00001-of-00003.parquet").unlink()
    with pytest.raises(TaskError, match=r"has 2 of 3 shards of part \(part-00000-of-00003\.parquet, .*copy the others"):
        load(tmp_path / "some").size("train")


@pytest.mark.parametrize(
    ("splits", "sizes"),
    [
        ({"train": "one.csv", "test": "two.csv"}, (2, 2)),
        ({"train": "one", "test": "more"}, (2, 2)),
        ({"train": "*.csv", "test": "more"}, (4, 2)),
    ],
)
def test_splits_name_files(tmp_path: Path, splits: dict[str, str], sizes: tuple[int, int]) -> None:
    for index, name in enumerate(("one.csv", "two.csv", "more/three.csv")):
        write(tmp_path / name, ROWS[2 * index : 2 * index + 2])
    for path in (tmp_path, tmp_path / "one.csv"):
        task = load(path, splits=splits)
        assert (task.size("train"), task.size("test")) == sizes
    with pytest.raises(TaskError, match=r"task\.splits: test: no file 'onee' in .*; did you mean one\.csv\?"):
        load(tmp_path, splits={"test": "onee"}).size("test")
    with pytest.raises(TaskError, match=r"found one\.csv, two\.csv; name the splits: task\.splits: \{train: one\.csv"):
        load(tmp_path).size("test")


def test_csv_cells_keep_answers_and_convert_columns(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    text = 'answer,n,share,is,code,note\n007,3,0.5,True,007,"a, ""b""\nc"\n1.10,,2,false,12,nan\n'
    file.write_text("\ufeff" + text.replace("\n", "\r\n"), encoding="utf-8", newline="")
    first, second = read(file, texts={"answer"})
    assert first == {"answer": "007", "n": 3, "share": 0.5, "is": True, "code": "007", "note": 'a, "b"\r\nc'}
    assert second == {"answer": "1.10", "n": None, "share": 2.0, "is": False, "code": "12", "note": "nan"}


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_any_csv_text_is_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]]
) -> None:
    rows = [{"prompt": one, "answer": two} for one, two in cells]
    file = write(tmp_path_factory.mktemp("csv") / "train.csv", rows)
    found = read(file, texts={"prompt", "answer"})
    as_missing = [{k: v if v.strip() else None for k, v in row.items()} for row in rows]
    assert found == as_missing


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "prompt;answer\n1;2\n", r"a\.csv, line 1: the header is one column, 'prompt;answer'; its delimiter "
         r'seems to be a semicolon: set task\.delimiter: ";"'),
        ("a.csv", "prompt,answer,answer\n1,2,3\n", r"line 1: two columns are named 'answer'"),
        ("a.csv", 'prompt,answer\n1,2\n"x"y,3\n', r"a\.csv, line 3: invalid CSV: .*check its quotes"),
        ("a.csv", 'prompt,answer\n"a\nb",2\nOne, two,3\n', r"line 4: 3 fields where the header has 2; put quotes"),
        ("a.csv", "prompt,answer\nA?,\n", r"a\.csv, line 2: 'answer' is empty \(task\.grader: number\)"),
        ("a.csv", "prompt,answer\nA?,NaN\n", r"a\.csv, line 2: 'answer' must be one number, .* found 'NaN'"),
        ("a.csv", "prompt, answer,answer \n1,2,3\n", r"line 1: two columns are named 'answer'"),
        ("a.csv", "prompt,answr\nA?,1\n", r"'answer' is missing \(task\.answer_field\); the row has prompt, answr: "
         r"set task\.answer_field: answr"),
        ("a.csv", "text,gold\nA?,1\n", r"line 2: 'prompt' is missing \(task\.prompt_field\); the row has text, gold: "
         r"set task\.prompt_field to one of them"),
        ("a.csv", "prompt,answer\n", r"a\.csv' has no rows"),
        ("a.csv", "", r"a\.csv' has no rows"),
        ("a.json", "[1]", r"a\.json, row 0: expected an object, found a number"),
        ("a.json", "[{", r"a\.json' is not valid JSON"),
        ("a.json", '{"prompt": "A?"}', r"a\.json, line 1: 'answer' is missing"),
        ("a.json", '{"train": [{"prompt": "A?"}], "test": [{"prompt": "B?"}]}', r"a\.json' has several lists of "
         r"objects \(train, test\): save each as a file, such as train\.json"),
        ("a.json", '[{"prompt": "A?", " answer": "1"}]', r"has prompt,  answer: set task\.answer_field: ' answer'"),
        ("a.parquet", "no", r"cannot read '.*a\.parquet' as Parquet: "),
    ],
)  # fmt: skip
def test_wrong_files_name_line_and_fix(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=message) as error:
        load(tmp_path / name).size("train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt,answer\nWie groß?,1\n".encode("latin-1"), r"not UTF-8 text \(byte 21\); save it as UTF-8"),
        ("prompt,answer\nA?,1\n".encode("utf-16"), r"UTF-16 text; save it as UTF-8"),
        (b"PK\x03\x04\xff\xff", r"a ZIP archive, as \.xlsx files are: extract it, or save the sheet as CSV"),
        (gzip.compress(b"prompt,answer\nA?,1\n", mtime=0)[:-9], ".*ended before the end-of-stream marker"),
    ],
)
def test_what_is_not_text_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(TaskError, match=rf"cannot read '.*a\.csv': {message}"):
        load(tmp_path / "a.csv").size("train")


LISTS = {
    "list": [*ROWS],
    "data": {"version": "1", "data": ROWS},
    "columns": {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "pandas": {name: {str(n): row[name] for n, row in enumerate(ROWS)} for name in ROWS[0]},
}


@pytest.mark.parametrize("layout", LISTS)
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_layouts_of_json(tmp_path: Path, layout: str, indent: int | None, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(LISTS[layout], indent=indent))
    assert list(read_rows(tmp_path / name)) == [(f"{tmp_path / name}, row {n}", row) for n, row in enumerate(ROWS)]


def test_rows_over_several_lines(tmp_path: Path) -> None:
    """As jq prints them; and a file of one row is a row, whatever its columns."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row, indent=1) for row in ROWS))
    assert [place.rpartition(", ")[2] for place, _ in read_rows(tmp_path / "a.jsonl")][:2] == ["line 1", "line 6"]
    assert read(tmp_path / "a.jsonl") == ROWS
    for row in (
        {"prompt": [{"role": "user", "content": "A?"}], "tags": ["x"]},
        {"prompt": "A?", "options": [{"a": 1}]},
    ):
        (tmp_path / "b.json").write_text(json.dumps(row, indent=1))
        assert read(tmp_path / "b.json", texts={"prompt"}) == [row]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_compressed_files_are_read(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    for split, rows in (("train", ROWS[:4]), ("test", ROWS[4:])):
        file = write(tmp_path / f"{split}{suffix}", rows)
        packed = file.with_name(file.name + {gzip.compress: ".gz", bz2.compress: ".bz2"}.get(pack, ".xz"))
        packed.write_bytes(pack(file.read_bytes()))
        file.unlink()
    for path in (tmp_path, packed, packed.with_name(packed.name.replace("test", "train"))):
        task = load(path)
        assert [task.size(split) for split in ("train", "test")] == [4, 2]
    assert load(tmp_path, splits={"train": "test", "test": "train"}).size("train") == 2
    assert load(packed).label == "data_test"


def test_endings_and_names_in_capitals(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ROWS[:4]).rename(tmp_path / "TRAIN.CSV")
    write(tmp_path / "test.csv", ROWS[4:]).rename(tmp_path / "Test.CSV")
    for path in (tmp_path, tmp_path / "TRAIN.CSV", tmp_path / "Test.CSV"):
        assert [load(path).size(split) for split in ("train", "test")] == [4, 2]


def test_texts_of_csv_are_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt , answer,name,n\nWhich bread?, Nan,Nan,1\nB?,b,Ann,nan\n")
    task = load(tmp_path / "a.csv", grader="text", splits={"test": "a.csv"})
    assert (task.problem("test", 0).answer, task.problem("test", 0).data["name"]) == ("Nan", "Nan")
    assert task.problem("test", 1).data["n"] is None


@pytest.mark.parametrize("kind", [pa.float32(), pa.float16(), pa.float64(), pa.decimal128(9, 2)])
def test_parquet_numbers_are_the_decimals_written(tmp_path: Path, kind: pa.DataType) -> None:
    values = [Decimal(n) / 10 for n in range(1, 30)]
    numbers = values if pa.types.is_decimal(kind) else [float(value) for value in values]
    answers = pa.array(numbers, pa.decimal128(9, 2) if pa.types.is_decimal(kind) else pa.float64()).cast(kind)
    nested = pa.StructArray.from_arrays([pa.array([[0.1]] * 29, pa.list_(pa.float32()))], ["of"])
    prompts = pa.array([f"{n}?" for n in range(29)])
    parquet.write_table(pa.table({"prompt": prompts, "answer": answers, "nested": nested}), tmp_path / "test.parquet")
    task = load(tmp_path / "test.parquet")
    problems = [task.problem("test", n) for n in range(29)]
    assert [Decimal(problem.answer) for problem in problems] == values
    assert problems[0].data["nested"] == {"of": [0.1]}
    attempts = [Attempt(p, f"</think> <answer>{v}</answer>") for p, v in zip(problems, values, strict=True)]
    assert all(task.judge(attempt).correct for attempt in attempts)


def test_a_broken_text_in_parquet_is_a_wrong_row(tmp_path: Path) -> None:
    texts = pa.array([b"A?", b"\xff", b"C?"], pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"prompt": texts, "answer": [1, 2, 3]}), tmp_path / "test.parquet")
    with pytest.raises(TaskError, match=r"test\.parquet, row 1: a text is not UTF-8 \(byte 0\); 1 of 3 rows is wrong"):
        load(tmp_path / "test.parquet").size("test")
    assert load(tmp_path / "test.parquet", wrong_rows="drop").size("test") == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(
    "wrong", [{"prompt": "1+2\ud83d"}, {"answer": "\udc00"}, {"x": [{"y\ud83d": 1}]}, {"\ud83d": 1}]
)
def test_half_a_character_is_a_wrong_row(tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    rows = [ROWS[0], {**ROWS[1], **wrong}, {**ROWS[2], "note": "\U0001f600"}]
    file = tmp_path / name
    file.write_text("\n".join(map(json.dumps, rows)) if name == "a.jsonl" else json.dumps(rows))
    key = ascii(next(iter(wrong)))[1:-1]
    place = "line 2" if name == "a.jsonl" else "row 1"
    with pytest.raises(TaskError) as error:
        load(file, grader="text").size("train")
    assert str(error.value).startswith(f"{file}, {place}: '{key}' has \\ud")
    task = load(file, grader="text", wrong_rows="drop")
    assert task.size("train") + task.size("test") == 2


MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1+1?"}]


@pytest.mark.parametrize("name", ["test.parquet", "test.jsonl"])
@pytest.mark.parametrize(
    ("row", "read"),
    [
        ({"data_source": "openai/gsm8k", "prompt": MESSAGES, "reward_model": {"ground_truth": "2", "style": "rule"}},
         "reward_model.ground_truth"),
        ({"prompt": MESSAGES, "solution": "2"}, "solution"),
        ({"prompt": "1+1?", "ground_truth": "2"}, "ground_truth"),
        ({"prompt": "1+1?", "ground_truth": "3", "answer": "2"}, None),
    ],
)  # fmt: skip
def test_rows_of_verl_and_trl(tmp_path: Path, name: str, row: dict[str, Any], read: str | None) -> None:
    task = load(write(tmp_path / name, [row]))
    problem = task.problem("test", 0)
    assert (problem.question, problem.answer) == ("1+1?", "2")
    note = f"'prompt' is read as the prompt, '{read}' as the gold answer (task.prompt_field, task.answer_field)"
    assert task.notes == ((note,) if read else ())  # type: ignore[attr-defined]
    unjudged = load(tmp_path / name, grader="none", rewards=["format"])
    assert unjudged.problem("test", 0).answer == ("" if read else "2")


def test_fields_of_objects_have_names(tmp_path: Path) -> None:
    file = write(tmp_path / "test.jsonl", [{"extra": {"question": "1+1?", "gold": 2}, "a.b": 1}])
    problem = load(file, prompt_field="extra.question", answer_field="extra.gold").problem("test", 0)
    assert (problem.question, problem.answer) == ("1+1?", "2")
    with pytest.raises(TaskError, match=r"line 1: 'extra\.golf' is missing \(task\.answer_field\)"):
        load(file, prompt_field="extra.question", answer_field="extra.golf").size("test")


def test_another_delimiter_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt;answer\n" + "".join(f"{n}?;{n}\n" for n in range(30)))
    assert load(tmp_path, delimiter=";").problem("train", 0).data.keys() == {"prompt", "answer"}


@pytest.mark.parametrize("grader", ["number", "text"])
def test_missing_parquet_answers_are_named(tmp_path: Path, grader: str) -> None:
    write(tmp_path / "a.parquet", [{"prompt": "A?", "answer": 1.0}, {"prompt": "B?", "answer": float("nan")}])
    with pytest.raises(TaskError, match=r"a\.parquet, row 1: 'answer' is NaN .*; 1 of 2 rows is wrong: fix it, or set"):
        load(tmp_path / "a.parquet", grader=grader).size("train")


def test_wrong_rows_are_counted_or_dropped(tmp_path: Path) -> None:
    rows = [{**row, "answer": "?"} if row["level"] % 2 else row for row in ROWS] * 5
    file = write(tmp_path / "a.jsonl", [{**row, "prompt": f"{i} {row['prompt']}"} for i, row in enumerate(rows)])
    with pytest.raises(TaskError) as error:
        load(file).size("train")
    assert str(error.value) == (
        f"{file}, line 2: 'answer' must be one number, or end in '#### N', found '?' (task.grader: number); 15 of 30 "
        "rows are wrong (also line 4, line 6, line 8, …): fix them, or set task.wrong_rows: drop"
    )
    task = load(file, wrong_rows="drop")
    assert task.size("train") + task.size("test") == 15
    assert task.notes[0].startswith(f"15 of 30 rows dropped; the first: {file}, line 2: 'answer' must be")  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="all 15 rows are wrong"):
        load(write(tmp_path / "b.jsonl", rows[1::2]), wrong_rows="drop").size("train")
    file = write(tmp_path / "c.jsonl", rows[:2])
    with pytest.raises(
        TaskError, match=r"too few problems to hold any out; 1 of 2 rows are wrong: .*c\.jsonl, line 2: '"
    ):
        load(file, wrong_rows="drop").size("train")


def test_held_out_rows_depend_on_the_seed(tmp_path: Path) -> None:
    rows = [{"prompt": text, "answer": 1} for n in range(300) for text in (f"Word {n} and", f"WORD  {n} and ")]
    file = write(tmp_path / "a.jsonl", rows)

    def held_out(seed: int) -> set[str]:
        task = load(file, split_seed=seed)
        train = {task.problem("train", index).question.lower().split()[1] for index in range(task.size("train"))}
        test = {task.problem("test", index).question.lower().split()[1] for index in range(task.size("test"))}
        assert train.isdisjoint(test)
        assert len(train | test) == 300
        return test

    assert held_out(0) == held_out(0) != held_out(1) == held_out(1)
