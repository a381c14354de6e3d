"""``protocol=paper`` against the paper's notebook: hashes of what it gives on the same files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from client_app.cache import Cache
from client_app.data import Dataset, load
from conf.compose import compose

# File, and sha256 of test, training rows and negatives, as UTF-8 lines ended by a newline: test
# "user,item" by user; training "user,item" by user and item; negatives "user," and 99 items sorted.
NOTEBOOK = {
    "filmtrust": (
        "filmtrust/filmtrust-ratings.txt",
        "b954fc8d8a95f098d29ef8e8354110b1e2723a36ae89747ce7e122a704e93060",
        "76d58a8b31d78d1a07c3b779550db69040d9c355a99df7a83e58b455a7014a76",
        "7aa7d23166153e44b62f6e46420f6370cb40712e9cdcab305503858e51f5ff03",
    ),
    "lastfm_2k": (
        "lastfm_2k/last-fm-2k-ratings.dat.gz",
        "511f2159721b89096a24d8236bd7fd29dfa5c1a57a2ce954d517f1a0dd690446",
        "d134644d08fc23b44b1a288bd81f2a3eff44341df7a42dca4d92306724e78999",
        "5ec411bfb7d775a7b750aa7b6511d6f77a11c700244d4d08f935c355bac74128",
    ),
    "amazon_video": (
        "amazon_video/amazon-video-ratings.dat",
        "9b47d1a262cf96326d2e10a933e7b268a0309300a64af858b7d130146de78af5",
        "ebab2106b04e0f21247103449652de277ff0a99e45670f2e713f52ba139bd3bd",
        "80919ddb2f3629e3a724334e9bb867b4226b0a64f3573a4df854f5865f2afab3",
    ),
    "ml_100k": (
        "ml_100k/ml-100k.inter",
        "0b28bad8d87a604dbd4f6c81110869e963dcf4fcc60fec6294c7f67544f749eb",
        "0436d1369b0965047d52085576c0979f5a7b6db0c0c8deebcaa7474d452b6e19",
        "028fd5cbe286f7dd263b511591ca428ef865a0139646b19965aed365d3ae8f3d",
    ),
    "qb_article_subset": (
        "qb_article_subset/QB-article-subset.csv",
        "ee90c16054bd7b2fa88cfabd5dfbcb9d626f1220e4b1c037c26421c2976d9c95",
        "0f9dbbfc6c9cccd1a684e3d0be0c8e6f1e55fe05973900a367ee2e6a0f798533",
        "9092d0479c1931f071182af361580fd9f7e21f4d0ab6cae0ba3ffc65d71b70b6",
    ),
}

# Users, items, training rows under paper; users, items, rows under strict where it is known.
COUNTS = {
    "filmtrust": (1227, 2059, 33662),
    "lastfm_2k": (1600, 12454, 184050),
    "amazon_video": (8072, 11830, 55764),
    "ml_100k": (943, 1682, 99057),
    "qb_article_subset": (11376, 1015, 121605),
    "ml_1m": (6040, 3706, 994169),
}
OTHER_FILES = {
    "ml_1m": "ml_1m/ml-1m-implicit.csv.gz",
    "lastfm_2k_listening": "lastfm_2k/user_artists.dat",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


def loaded(name: str, file: Path, protocol: str, cache: Cache) -> Dataset:
    cfg = compose([f"dataset={name}", f"dataset.path='{file}'", f"protocol={protocol}"])
    return load(cfg.dataset, cfg.protocol, cache)


def digest(rows: Iterable[Iterable[int]]) -> str:
    return hashlib.sha256("".join(",".join(map(str, r)) + "\n" for r in rows).encode()).hexdigest()


@pytest.mark.parametrize("name", NOTEBOOK)
def test_paper_protocol_is_the_notebooks(name: str, cache: Cache, shared_data: Path) -> None:
    file, test, train, negatives = NOTEBOOK[name]
    data = loaded(name, shared_data / file, "paper", cache)
    users = range(data.num_users)
    assert (data.num_users, data.num_items, len(data.train_items)) == COUNTS[name]
    assert digest(enumerate(data.test_U.tolist())) == test
    assert digest((u, i) for u in users for i in data.train_of(u).tolist()) == train
    assert digest((u, *row) for u, row in enumerate(data.test_candidates_UC.tolist())) == negatives
    assert (data.validation_U == -1).all()
    assert data.validation_candidates_UC.shape == (data.num_users, 0)


def test_both_forms_of_movielens_are_the_same_data(cache: Cache, shared_data: Path) -> None:
    inter, plain = (
        loaded("ml_100k", shared_data / "ml_100k" / file, "paper", cache)
        for file in ("ml-100k.inter", "u.data")
    )
    assert inter.fingerprint == plain.fingerprint
    assert inter.catalogue == plain.catalogue


def test_paper_counts_of_lastfm(cache: Cache, shared_data: Path) -> None:
    """Repeats, test pairs that are training pairs too, and what merging repeats leaves."""
    file = shared_data / NOTEBOOK["lastfm_2k"][0]
    paper = loaded("lastfm_2k", file, "paper", cache)
    assert paper.counts["repeated_rows"] == 115_142
    in_train = [paper.test_U[u] in paper.train_of(u) for u in range(paper.num_users)]
    assert sum(in_train) == 1006
    strict = loaded("lastfm_2k", file, "strict", cache)
    assert (strict.num_users, strict.num_items) == (1222, 12_274)
    assert strict.counts["rows_used"] == 69_595


@pytest.mark.parametrize("name", [*NOTEBOOK, *OTHER_FILES])
def test_strict_protocol_keeps_apart_what_it_holds_out(
    name: str, cache: Cache, shared_data: Path
) -> None:
    file = OTHER_FILES.get(name) or NOTEBOOK[name][0]
    data = loaded(name, shared_data / file, "strict", cache)
    assert data.test_candidates_UC.shape == data.validation_candidates_UC.shape
    assert data.counts["rows_used"] == len(data.train_items) + 2 * data.num_users
    for user in range(0, data.num_users, 7):
        train, heldout = data.train_of(user).tolist(), data.heldout_of(user).tolist()
        assert len(heldout) == 2
        own = {*train, *heldout}
        assert len(own) == len(train) + 2
        for candidates in (data.test_candidates_UC, data.validation_candidates_UC):
            assert len(set(candidates[user].tolist()) - own) == 99


def test_movielens_1m_under_paper_counts(cache: Cache, shared_data: Path) -> None:
    data = loaded("ml_1m", shared_data / OTHER_FILES["ml_1m"], "paper", cache)
    assert (data.num_users, data.num_items, len(data.train_items)) == COUNTS["ml_1m"]


def test_tab_separated_movielens_1m_ratings(cache: Cache, shared_data: Path) -> None:
    """The file has one row a user: it reads, and no protocol can split it."""
    columns = "dataset.columns=[user,item,rating,timestamp]"
    cfg = compose(
        [
            "dataset=file",
            f"dataset.path='{shared_data / 'ml_1m' / 'ml-1m.test.rating'}'",
            "dataset.separator=tab",
            "dataset.rows=6040",
            "dataset.users=6040",
            columns,
        ]
    )
    with pytest.raises(ValueError, match=r"no user has protocol\.min_interactions=5"):
        load(cfg.dataset, cfg.protocol, cache)
