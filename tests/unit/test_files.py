"""Reading data files: formats, ids, order in time, and what is said about bad ones."""

from __future__ import annotations

import gzip
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.errors import DataError
from client_app.files import read_bytes
from client_app.interactions import Interactions, parse
from client_app.layout import layout_of
from client_app.rows import _read_carefully, _read_fast, number_of, read_rows
from conf.tree import DatasetConfig

FILE = DatasetConfig(name="file")
PAIRS = replace(FILE, columns=("user", "item"), time="file_order")


def parsed(
    text: str, config: DatasetConfig = FILE, path: str = "/data/ratings.csv"
) -> Interactions:
    return parse(text.encode(), config, path)


def triples(data: Interactions) -> list[tuple[str, str, int]]:
    users, items = data.user_ids[data.users], data.item_ids[data.items]
    return [(str(u), str(i), int(t)) for u, i, t in zip(users, items, data.times, strict=True)]


EXPECTED = [("u1", "b", 1), ("u2", "a", 0), ("u1", "a", 2)]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("u1,b,3,20\nu2,a,4,10\nu1,a,5,30\n", {}),
        ("u1,b,3,20\r\nu2,a,4,10\r\nu1,a,5,30\r\n", {}),
        ("u1,b,3,20\nu2,a,4,10\n\nu1,a,5,30", {}),
        ("\ufeffu1,b,3,20\nu2,a,4,10\nu1,a,5,30\n", {}),
        ('"u1","b",3,20\nu2,a,4,10\nu1,"a",5,30\n', {}),
        ("u1::b::3::20\nu2::a::4::10\nu1::a::5::30\n", {"separator": "::"}),
        ("u1\tb\t3\t20\nu2\ta\t4\t10\nu1\ta\t5\t30\n", {"separator": "tab"}),
        ("20;b;x;u1\n10;a;;u2\n30;a;z;u1\n", {
            "separator": "semicolon", "columns": ("timestamp", "item", "_", "user")
        }),
        ("when,who,what\n20,u1,b\n10,u2,a\n30,u1,a\n", {
            "header": True, "columns": ("user:who", "item:what", "timestamp:when")
        }),
        ("w,x,y\nu1,b,20\nu2,a,10\nu1,a,30\n", {
            "header": True, "columns": ("user", "item", "timestamp")
        }),
        ("item_id:token\tuser_id:token\ttimestamp:float\nb\tu1\t20\na\tu2\t10\na\tu1\t30\n", {}),
        ("uid:token\tiid:token\tt:float\nu1\tb\t20\nu2\ta\t10\nu1\ta\t30\n", {
            "columns": ("user:uid", "item:iid:token", "timestamp:t")
        }),
    ],
)  # fmt: skip
def test_the_same_rows_in_many_formats(text: str, settings: dict[str, Any]) -> None:
    data = parsed(text, replace(FILE, **settings))
    assert triples(data) == EXPECTED
    assert data.counts == {"rows": 3, "bad_rows": 0, "below_threshold": 0}


def test_inter_is_known_by_suffix_or_typed_header_and_delimited_can_be_forced() -> None:
    text = "user_id\titem_id\ttimestamp\nu1\tb\t20\n"
    assert triples(parsed(text, path="/d/x.inter")) == triples(parsed(text, path="/d/x.inter.gz"))
    with pytest.raises(DataError, match=r"x\.txt:1: 1 fields, expected 4"):
        parsed(text, path="/d/x.txt")
    typed = "user_id:token,item_id:token,timestamp:float\nu1,b,20\n"
    columns = ("user:user_id:token", "item:item_id:token", "timestamp:timestamp:float")
    config = replace(FILE, format="delimited", header=True, columns=columns)
    assert triples(parsed(typed, config)) == [("u1", "b", 0)]


def test_raw_ids_stay_strings_and_are_ordered_by_appearance_or_number() -> None:
    text = "10,007,1,1\n9,7,1,2\n10,-1,1,3\n"
    data = parsed(text)
    assert data.user_ids.tolist() == ["10", "9"]
    assert data.item_ids.tolist() == ["007", "7", "-1"]
    data = parsed(text, replace(FILE, id_order="number"))
    assert data.user_ids.tolist() == ["9", "10"]
    assert data.item_ids.tolist() == ["-1", "007", "7"]
    assert data.users.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"item id 'x' is not a number.*first_appearance"):
        parsed("1,x,1,1\n", replace(FILE, id_order="number"))


def test_times_missing_negative_and_in_nanoseconds() -> None:
    nanoseconds = 1_700_000_000_000_000_000
    text = f"u,a,,\nu,b,1,-5\nu,c,1,nan\nu,d,1,{nanoseconds + 1}\nu,e,1,{nanoseconds}\n"
    # In float64 the last two would be equal: a step there is 256 ns. With a missing time among
    # them they are float64, so only the exact column keeps them apart.
    assert parsed(text).times[:3].tolist() == [-1, 0, -1]
    exact = "".join(text.splitlines(keepends=True)[3:])
    assert parsed(exact).times.tolist() == [1, 0]


def test_times_from_the_file_order_and_drawn_once() -> None:
    rows = "".join(f"u{i % 3},i{i}\n" for i in range(30))
    assert parsed(rows, PAIRS).times.tolist() == list(range(30))
    drawn = parsed(rows, replace(PAIRS, time="random")).times
    assert sorted(drawn.tolist()) == list(range(30)) != drawn.tolist()
    # The notebook's rule: default_rng(42), times 10**6 plus the running number in the user.
    keys = np.random.default_rng(42).integers(0, 10**9, 30) * 10**6 + np.arange(30) // 3
    assert np.argsort(drawn).tolist() == np.argsort(keys).tolist()


def test_threshold_keeps_ratings_at_least_as_high() -> None:
    config = replace(FILE, rating_threshold=4.0)
    data = parsed("u,a,3.9,1\nu,b,4,2\nv,c,4.5,3\n", config)
    assert [row[:2] for row in triples(data)] == [("u", "b"), ("v", "c")]
    assert data.counts["below_threshold"] == 1
    with pytest.raises(DataError, match=r"ratings\.csv:2: rating is missing"):
        parsed("u,a,3.9,1\nu,b,,2\n", config)


INTER = "user_id:token\titem_id:token\ttimestamp:float\nu1\tb\t20\n"
BAD = [
    ("u,a,1,1\nu,b,1\n", "2: 3 fields, expected 4"),
    ("u,a,1,1\n\nu,b,1,2,9\n", "3: 5 fields, expected 4"),
    ("u,a,1,1\nu,b,good,2\n", "2: rating 'good' is not a number"),
    ("u,a,1,1\nu,b,1,2020-01-01\n", "2: timestamp '2020-01-01' is not a number"),
    ("u,a,1,1\nu,b,1,inf\n", "2: timestamp 'inf' is not a number"),
    ("u,a,1,1\nu,b,True,2\n", "2: rating 'True' is not a number"),
    ("u,a,1,1\nu,b,1_0,2\n", "2: rating '1_0' is not a number"),
    ("u,a,1,1\n ,b,1,2\n", "2: empty user id"),
    ("u,a,1,1\r\nu,,1,2\r\n", "2: empty item id"),
    ('u,a,1,1\nu,"b\n",1,2\nu,,1,2\n', "4: empty item id"),
    ('u,a,1,1\nu,"b,1,2\nu,c,1,3\n', "2: unreadable: a quote .* never closed; dataset.bad"),
    ('"u,a,1,1\nu,b,1,2\n', "1: unreadable: a quote .* never closed; dataset.bad_rows=skip"),
    ('"u,a,1,1\n"v,b,1,2\n', "1: unreadable quotes .*runs over 2 lines.*; dataset.bad_rows=skip"),
    ("u,a,1,1\nu,b,x,1\nu,,1,1\n", "2: rating 'x' is not a number \\(and 1 more bad rows\\)"),
    ("user,item,rating,timestamp\nu,a,1,1\n", "1: rating 'rating' .*dataset.header=true"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_rows_are_named_by_file_and_line(text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^/data/ratings\.csv:{message}") as error:
        parsed(text)
    assert "\n" not in str(error.value)


def test_bad_rows_are_skipped_and_counted_on_request() -> None:
    text = "u,a,1,1\nu,b,1\n,c,1,2\nu,d,x,3\nu,e,1,y\nu,f,2,9\n"
    data = parsed(text, replace(FILE, bad_rows="skip"))
    assert triples(data) == [("u", "a", 0), ("u", "f", 1)]
    assert data.counts["bad_rows"] == 4
    with pytest.raises(DataError, match="no rows; 1 bad rows were left out"):
        parsed("u\n", replace(FILE, bad_rows="skip"))


def test_empty_trailing_columns_are_not_short_lines() -> None:
    config = replace(FILE, columns=("user", "item", "timestamp", "_"))
    assert len(parsed("u,a,1,\nu,b,2,x\n", config).users) == 2
    with pytest.raises(DataError, match=r":2: 3 fields, expected 4"):
        parsed("u,a,1,\nu,b,2\n", config)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "the file is empty"),
        ("\n \n", {}, "the file is empty"),
        ("a,b,c,d\n", {"header": True}, "no rows"),
        ("a,b\n1,2\n", {"header": True, "columns": ("user:a", "item:x")}, ":1: no column 'x'"),
        ("a,b\n", {"columns": ("user", "item")}, "no timestamp column.*file_order"),
        ("a:token\tb:token\n1\t2\n", {}, "no user column; name it"),
        ('"a,b,c,d\nu,a,1,1\n', {"header": True}, r"csv:1: unreadable: a quote .* never closed"),
        (INTER, {"separator": "semicolon"}, "separator=semicolon does not apply: .* typed header"),
        (INTER, {"columns": ("item", "user", "timestamp")}, r"=\[item,user,timestamp\] does not"),
        ("u,a,1,1\n", {"rows": 2}, "1 rows, dataset=file has 2.*dataset.rows=null"),
        ("u,a,1,1\n", {"users": 3}, "1 users, dataset=file has 3"),
        ("u,a,1,1\n", {"items": 3}, "1 items, dataset=file has 3"),
        ("u,a,1,1\nu,\0,1,1\n", {}, ":2: a NUL byte"),
        ("u,a,1,1\n", {"encoding": "klingon"}, "unknown encoding 'klingon'"),
    ],
)
def test_files_that_do_not_fit_their_description(
    text: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        parsed(text, replace(FILE, **settings))


def test_wrong_encoding_gives_the_line() -> None:
    raw = "u,a,1,1\nu,é,1,2\n".encode("latin-1")
    with pytest.raises(DataError, match=r"x\.csv:2: not utf-8 text; set dataset\.encoding"):
        parse(raw, FILE, "/x.csv")
    assert parse(raw, replace(FILE, encoding="latin-1"), "/x.csv").item_ids.tolist() == ["a", "é"]


def test_plain_gzip_and_archive_members_read_alike(tmp_path: Path) -> None:
    content = b"u,a,1,1\n"
    (tmp_path / "x.csv").write_bytes(content)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(content))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("sub/x.csv", content)
    for name in ("x.csv", "x.csv.gz", "x.zip:sub/x.csv"):
        assert read_bytes(f"{tmp_path}/{name}") == content


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"u,a,1,1\n" * 99)[:-9])
    (tmp_path / "y.gz").write_bytes(b"plain")
    (tmp_path / "x.zip").write_bytes(b"plain")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("a", "b")
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
        archive.mkdir("d")
        for number in range(7):
            archive.writestr(f"d/{number}", "b")
    with zipfile.ZipFile(tmp_path / "e.zip", "w"):
        pass
    for name, message in [
        ("absent.csv", "no such file"),
        ("x.gz", "damaged archive"),
        ("y.gz", "damaged archive"),
        ("x.zip:a", "damaged archive"),
        ("z.zip:c", r"no member 'c' in the archive; it has /.*/z\.zip:a$"),
        ("z.zip", r"/z\.zip: name a member of the archive; it has /.*/z\.zip:a$"),
        ("w.zip", r"name a member of the archive; it has .*w\.zip:d/4 and 2 more$"),
        ("e.zip", "name a member of the archive; it is empty"),
        ("x.zip", "damaged archive"),
        ("", "cannot be read"),
    ]:
        with pytest.raises(DataError, match=message) as error:
            read_bytes(f"{tmp_path}/{name}")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), (" -3.5 ", -3.5), ("1e3", 1000.0), ("0x1", None), ("-inf", None)]
)
def test_number_of(text: str, value: float | None) -> None:
    assert number_of(text) == value


FIELDS = st.sampled_from(["1", "2.5", "-3", "", "x", "nan", " ", "7 ", "1e2", "inf", "00"])


@given(st.lists(st.lists(FIELDS, min_size=3, max_size=5), min_size=1, max_size=6))
def test_fast_and_careful_reading_agree(lines: list[list[str]]) -> None:
    """The fast reading either gives exactly the careful one's rows, or gives up."""
    text = "\n".join(",".join(line) for line in lines) + "\n"
    layout = layout_of(FILE, text, "/x.csv")
    fast = _read_fast(text, layout, ",", False)
    careful = _read_carefully(text, layout, ",", False)
    if fast is None:
        assert read_rows(text, layout, False).bad == careful.bad
        return
    assert not careful.bad
    assert fast.users.tolist() == careful.users.tolist()
    assert fast.items.tolist() == careful.items.tolist()
    np.testing.assert_array_equal(fast.ratings, careful.ratings)
    np.testing.assert_array_equal(fast.times, careful.times)
