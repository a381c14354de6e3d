"""``fedrecgel keys``: two files, the private one its owner's alone; nothing is replaced."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

pytest.importorskip("phe")

from server_app.cli import run_command
from strategies.paillier_keys import read_private, read_public


def test_a_pair_that_fits(tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    assert run_command(["keys", str(folder)]) == 0
    public = read_public(folder, allow_weak=False)
    assert public.n.bit_length() == 2048
    private = read_private(folder, public)
    assert private.raw_decrypt(public.raw_encrypt(7)) == 7
    assert stat.S_IMODE((folder / "private.json").stat().st_mode) == 0o600
    assert set(json.loads((folder / "public.json").read_text())) == {"n"}


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak = ["keys", str(tmp_path), "--bits", "512", "--allow-weak-key"]
    assert run_command(weak) == 0
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert run_command(weak) == 2
    assert "private.json is there already" in capsys.readouterr().err
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before


def test_short_keys_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["keys", str(tmp_path / "weak"), "--bits", "1024"]) == 2
    assert "1024 bits is weak" in capsys.readouterr().err
    assert not (tmp_path / "weak").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "public.json").write_text('{"n": "x"}')
    with pytest.raises(ValueError, match="is not a key file as fedrecgel keys makes it"):
        read_public(tmp_path, allow_weak=True)
