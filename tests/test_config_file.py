"""Reading a file apart: JSON with comments, TOML, and every way in which a file cannot be read."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.config_errors import ConfigProblems, Problem
from relay.config_file import LARGEST_FILE_BYTES, Document, read_document

WITHOUT_FIXTURE_CHECK = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)


def document_of(tmp_path: Path, content: str | bytes, name: str = "relay.json") -> Document:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_document(path)


def error_of(tmp_path: Path, content: str | bytes, name: str = "relay.json") -> str:
    with pytest.raises(ConfigProblems) as caught:
        document_of(tmp_path, content, name)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / name))
    assert "\n" not in text
    return text.removeprefix(str(tmp_path / name) + ":")


def test_read_json_comments_and_trailing_commas_are_left_out(tmp_path: Path) -> None:
    content = """\
// first, with "quotes" and a , in it
{
  "a": [1, 2, /* , ] */ ], /* over
  lines */
  "b": "// no comment, /* none */ ,}",
  "c": {"d": true,}, // last
}
"""

    found = document_of(tmp_path, content).data

    assert found == {"a": [1, 2], "b": "// no comment, /* none */ ,}", "c": {"d": True}}


@WITHOUT_FIXTURE_CHECK
@given(st.dictionaries(st.text(max_size=8), JSON_VALUE), st.sampled_from([None, 2]))
def test_read_json_any_object_reads_as_the_standard_parser_does(
    tmp_path: Path, data: dict[str, object], indent: int | None
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=False)

    assert document_of(tmp_path, text.encode("utf-8", "surrogatepass")).data == data


@WITHOUT_FIXTURE_CHECK
@given(st.text(alphabet='{}[],:"/*\\ \n1a', max_size=30))
def test_read_json_any_text_gives_an_object_or_its_own_error(tmp_path: Path, text: str) -> None:
    try:
        found: dict[str, object] | str = document_of(tmp_path, text).data
    except ConfigProblems as error:
        found = str(error)

    assert found.isprintable() if isinstance(found, str) else isinstance(found, dict)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1 "b": 2}', "1:9: expecting ',' delimiter"),
        ('{\n  "a": 1,\n  b: 2\n}', "3:3: expecting property name enclosed in double quotes"),
        ('{"a": }', "1:7: expecting value"),
        ('{"a": [1,,]}', "1:10: expecting value"),
        ('{"a": [,]}', "1:8: expecting value"),
        ('{"a": 1', "1:8: the file ends inside the object that begins at line 1, column 1"),
        (
            '{"a": [{"b": 1},\n [2, // c',
            "2:10: the file ends inside the list that begins at line 2, column 2",
        ),
        ('{"a": ', "1:7: the file ends inside the object that begins at line 1, column 1"),
        ('{"a": [1, 2}', "1:12: expecting ',' delimiter"),
        ('{"a": 1}\n}', "2:1: extra data"),
        ('{"a": "x\n"}', "1:7: the string is not closed on its line"),
        ('{"a": "x', "1:7: the string is not closed on its line"),
        ('{"a": "\\q"}', "1:8: invalid \\escape"),
        ('{"a": 1 /* never\n', "1:9: the comment is not closed"),
        ('{\r\n\r\n "a": x}', "3:7: expecting value"),
        ('{"a": NaN}', "1:7: NaN is not a number that JSON has"),
        ('{"a": [-Infinity]}', "1:8: -Infinity is not a number that JSON has"),
        ('{"a": ' + "9" * 5000 + "}", '1:7: expected a value, not "99999999999999999999..."'),
        ("[" * 100_000, "1:65: nested deeper than 64 levels"),
        ('{"a":' * 100, "1:321: nested deeper than 64 levels"),
        ('{"a": 1, "b": {"c": 1,\n "c": 2}}', "2:2: b.c: the field is there twice"),
        ("[1]", "1:1: expected an object"),
        ("12", "1:1: expected an object"),
        ("", " the file is empty"),
        (" \n\t\n", " the file is empty"),
        (b"\xef\xbb\xbf", " the file is empty"),
        (b'{"a": \n "\xff"}', "2:3: the byte 0xff is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), " the file is UTF-16; save it as UTF-8"),
    ],
)
def test_read_json_broken_file_says_where(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    assert error_of(tmp_path, content).startswith(message)


def test_read_json_byte_order_mark_and_crlf_are_tolerated(tmp_path: Path) -> None:
    found = document_of(tmp_path, b'\xef\xbb\xbf{\r\n"a": 1, // x\r\n}\r\n')

    assert found.data == {"a": 1}


def test_read_json_deep_but_allowed_nesting_is_read(tmp_path: Path) -> None:
    text = '{"a":' + "[" * 63 + "]" * 63 + "}"

    assert "a" in document_of(tmp_path, text).data


def test_read_toml_gives_the_same_as_json(tmp_path: Path) -> None:
    toml = 'workers = 2\n[[pools]]\nname = "a"\n[pools.smart_pool]\ndeadline = "4s"\n'

    found = document_of(tmp_path, toml, "relay.toml")

    assert found.data == {
        "workers": 2,
        "pools": [{"name": "a", "smart_pool": {"deadline": "4s"}}],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = 1\nb 2\n", "2:3: expected '=' after a key in a key/value pair"),
        ("a = 1\na = 2\n", "2:6: cannot overwrite a value"),
        ("a = [1,", "1:8: "),
        ("a = " + "[" * 5000 + "]" * 5000, " nested too deep to be a configuration"),
        ("a = " + "[" * 70 + "]" * 70, " nested too deep to be a configuration"),
        ("a = " + "9" * 5000, " exceeds the limit"),
        ("\n", " the file is empty"),
    ],
)
def test_read_toml_broken_file_says_where(tmp_path: Path, content: str, message: str) -> None:
    assert error_of(tmp_path, content, "relay.toml").startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "is_toml"),
    [
        ("relay.toml", "a = 1", True),
        ("relay.JSON", '{"a": 1}', False),
        ("relay.jsonc", "// x\n{}", False),
        ("relay.conf", '{"a": 1}', False),
        ("relay.conf", "/* x */ {}", False),
        ("relay.conf", "a = 1", True),
        ("relay", "# comment\n[a]\n", True),
    ],
)
def test_read_kind_is_told_by_extension_then_content(
    tmp_path: Path, name: str, content: str, is_toml: bool
) -> None:
    assert document_of(tmp_path, content, name).is_toml is is_toml


def test_read_file_missing_or_directory_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match="No such file or directory"):
        read_document(tmp_path / "none.json")
    with pytest.raises(ConfigProblems, match="Is a directory"):
        read_document(tmp_path)
    with pytest.raises(ConfigProblems, match="null"):
        read_document(Path("a\0b"))


def test_read_file_endless_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblems, match="larger than 16 MiB"):
        read_document(Path("/dev/zero"))
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(LARGEST_FILE_BYTES + 1)
    with pytest.raises(ConfigProblems, match="larger than 16 MiB"):
        read_document(big)


def test_read_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('{"a": 1}',))
    writer.start()

    assert read_document(pipe).data == {"a": 1}
    writer.join()


def test_located_json_problem_gets_line_and_column(tmp_path: Path) -> None:
    found = document_of(
        tmp_path, '{\n /* x */ "pools": [ {"name": "a"},\n  {"b": [1,\n 2]} ], "c": {}\n}'
    )
    paths = [("c",), ("pools", 1, "b", 1), ("pools", 1, "none"), ("pools", 0, "name"), ()]

    located = found.located(Problem("wrong", path) for path in paths)

    assert [(p.path, p.line, p.column) for p in located] == [
        (("pools", 0, "name"), 2, 22),
        (("pools", 1, "none"), 3, 3),
        (("pools", 1, "b", 1), 4, 2),
        (("c",), 4, 9),
        ((), 0, 0),
    ]


def test_located_toml_problem_gets_line_and_column(tmp_path: Path) -> None:
    toml = """\
workers = 2
[[pools]]
name = "a"
[[pools]]
  name = "b"
resolvers = [
  "x",
]
[pools.smart_pool]
discovery.want = 3
"""
    found = document_of(tmp_path, toml, "relay.toml")
    paths: list[tuple[str | int, ...]] = [
        ("pools", 1, "smart_pool", "discovery", "want"),
        ("pools", 1, "smart_pool", "none"),
        ("pools", 1, "resolvers", 0),
        ("pools", 1, "name"),
        ("pools", 0, "name"),
        ("workers",),
    ]

    located = found.located(Problem("wrong", path) for path in paths)

    assert [(p.line, p.column) for p in located] == [
        (1, 1),
        (3, 1),
        (5, 3),
        (6, 1),
        (9, 1),
        (10, 1),
    ]


def test_located_toml_text_over_lines_is_not_taken_for_keys(tmp_path: Path) -> None:
    found = document_of(tmp_path, 'a = """\nb = 1\n"""\nb = 2\n', "relay.toml")

    (located,) = found.located([Problem("wrong", ("b",))])

    assert located.line == 0


def test_located_flag_problem_names_no_file(tmp_path: Path) -> None:
    (located,) = document_of(tmp_path, "{}").located([Problem("wrong", ("--listen",))])

    assert str(located) == "--listen: wrong"
