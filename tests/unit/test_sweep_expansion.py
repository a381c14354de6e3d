"""What a sweep asks for: the grammar, products, yaml files, labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.checks import RUN_NAME
from conf.compose import expand, options
from conf.tree import ConfigError
from experiments.sweep.labels import LONGEST, arm_labels, labels
from experiments.sweep.spec import Spec, read_spec, spec_of


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        expand(overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_product_varies_the_last_fastest() -> None:
    assert expand(["a=1,2", "c=x", "b=u,v"]) == [
        ["a=1", "c=x", "b=u"],
        ["a=1", "c=x", "b=v"],
        ["a=2", "c=x", "b=u"],
        ["a=2", "c=x", "b=v"],
    ]
    assert expand([]) == [[]]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("a=choice(1,2)", ["a=1", "a=2"]),
        ("a=range(1,4)", ["a=1", "a=2", "a=3"]),
        ("a=range(0,0.3,0.1)", ["a=0.0", "a=0.1", "a=0.2"]),
        ("a=sort(3,1,2)", ["a=1", "a=2", "a=3"]),
        # Commas in brackets and quotes separate nothing.
        ("a=[1,2]", ["a=[1,2]"]),
        ("a=[1,2],[3]", ["a=[1,2]", "a=[3]"]),
        ("a='x,y'", ["a='x,y'"]),
        ("a='x,y',z", ["a='x,y'", "a=z"]),
        ("+a=1,2", ["+a=1", "+a=2"]),
    ],
)
def test_the_grammar_is_hydras(override: str, values: list[str]) -> None:
    assert [job[0] for job in expand([override])] == values


def test_glob_is_over_a_groups_options() -> None:
    found = [job[0] for job in expand(["strategy=glob(fed*,exclude=fedd*)"])]
    wanted = [n for n in options("strategy") if n.startswith("fed") and not n.startswith("fedd")]
    assert found == [f"strategy={name}" for name in wanted]
    assert "fedncf" in wanted


def test_what_cannot_be_enumerated_is_one_line() -> None:
    assert "interval has no values" in refusal("a=interval(0,1)")
    assert "fixed order" in refusal("a=shuffle(1,2,3)")
    assert "given twice" in refusal("a=1", "a=2,3")
    assert "glob() is for" in refusal("seed=glob(*)")
    assert "no value at all" in refusal("strategy=glob(nix*)")
    assert "cannot read" in refusal("a=[")


def test_seeds_are_another_word_for_seed() -> None:
    for text in ("seeds=0,1", "seeds=[0,1]", "seed=0,1"):
        assert spec_of([text], [])[0].products() == [["seed=0"], ["seed=1"]]


def test_also_adds_a_product_that_shares_what_is_not_swept() -> None:
    spec, _ = spec_of(["a=1", "c=0", "b=1,2"], ["d='x y' c=9"])
    assert spec.products() == [
        ["a=1", "c=0", "b=1"],
        ["a=1", "c=0", "b=2"],
        ["a=1", "d=x y", "c=9"],
    ]


def test_a_name_is_derived_that_is_the_same_for_the_same_sweep() -> None:
    name = spec_of(["strategy=a,b", "x.y=1"], [])[1]
    assert name == spec_of(["strategy=a,b", "x.y=1"], [])[1]
    assert name.startswith("sweep-strategy-")
    assert name != spec_of(["strategy=a,b", "x.y=2"], [])[1]


def test_a_yaml_file_and_overrides_on_top(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: t\nfixed: [c=0]\nsweeps: [['a=1,2'], ['b=3', 'seeds=0,1']]\n")
    spec, name = read_spec(str(path))
    assert (name, spec.title) == ("mine", "t")
    assert spec.products() == [
        ["c=0", "a=1"],
        ["c=0", "a=2"],
        ["c=0", "b=3", "seed=0"],
        ["c=0", "b=3", "seed=1"],
    ]
    assert spec.with_overrides(["seed=5", "a=9"]).products() == [
        ["c=0", "seed=5", "a=9"],
        ["c=0", "b=3", "seed=5", "a=9"],
    ]
    assert spec_of([str(path), "experiment=other"], [])[1] == "mine-other"
    path.write_text("title: t\nsweep: []\n")
    with pytest.raises(ConfigError, match="unknown key sweep; did you mean sweeps"):
        read_spec(str(path))


def test_labels_say_what_differs() -> None:
    jobs = expand(["strategy=fedncf,fedmf", "a.rho=0,0.02", "b=1", "seed=0,1"])
    assert labels(jobs)[:3] == ["fedncf-rho_0-s0", "fedncf-rho_0-s1", "fedncf-rho_0.02-s0"]
    assert arm_labels(jobs)[:3] == ["fedncf-rho_0", "fedncf-rho_0", "fedncf-rho_0.02"]
    # Keys that end alike are written in full.
    assert labels([["a.x=1", "b.x=1"], ["a.x=2", "b.x=2"]]) == ["a.x_1-b.x_1", "a.x_2-b.x_2"]
    # A setting that some jobs lack differs too; the seed stands last wherever it was given.
    assert labels([["seed=0"], ["seed=0", "a=1"]]) == ["plain", "a_1"]
    assert labels(expand(["seed=0,1", "a=1,2"]))[0] == "a_1-s0"
    assert labels([["a=1"]]) == [""]


def test_labels_of_texts_that_are_no_file_names_stay_apart() -> None:
    made = labels([["a='x y'"], ["a='x/y'"], [f"a={'z' * 300}"], ["dataset.path=/q/r.csv"]])
    assert len(set(made)) == 4
    assert made[0].startswith("a_x_y-")
    assert made[3] == "path_r.csv"
    assert max(map(len, made)) <= LONGEST + 9


VALUES = st.text("abAB019.-_ /'=[]", min_size=1, max_size=8)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=6, unique=True))
def test_every_label_is_a_runs_name_and_no_two_are_the_same(pairs: list[tuple[str, str]]) -> None:
    jobs = [[f"k.a={first}", f"k.b={second}"] for first, second in pairs]
    made = labels(jobs)
    assert all(RUN_NAME.fullmatch(name) for name in made)
    assert len({name.lower() for name in made}) == len(jobs)
    # Stable: the order of the jobs and a second call change nothing.
    assert dict(zip(map(tuple, jobs), made, strict=True)) == dict(
        zip(map(tuple, jobs[::-1]), labels(jobs[::-1]), strict=True)
    )


@pytest.mark.parametrize("name", options("sweep"))
def test_sweeps_that_come_with_the_project_can_be_read(name: str) -> None:
    spec, read = read_spec(name)
    assert isinstance(spec, Spec)
    assert read == name
    assert spec.title
    assert all(job for job in spec.products())


def test_an_open_quote_in_also_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"--also .* No closing quotation"):
        spec_of(["seed=0"], ["strategy='fedncf"])
