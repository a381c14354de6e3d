"""The templates of ``deploy/`` and the commands of its page: only what the programs accept."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from client_app.node_config import CACHE_PATH, DATA_PATH, STORE_PATH

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "deployment.md"
PARSERS = {"superlink": _parse_args_run_superlink, "supernode": _parse_args_run_supernode}
PROGRAMS = ("fedrecgel", "flower-supernode", "flower-superlink")
SECTIONS = {"Unit", "Service", "Install"}
SETTING = re.compile(r"[A-Z][A-Za-z]+=.*")


def parsed(role: str, arguments: list[str]) -> dict[str, object]:
    """What Flower's own parser makes of a command's arguments; it exits for a bad one."""
    parser: ArgumentParser = PARSERS[role]()
    return vars(parser.parse_args(arguments))


def check_node_config(text: str) -> None:
    found = parse_config_args([text])
    assert found
    assert set(found) <= {DATA_PATH, CACHE_PATH, STORE_PATH}


def unit(name: str) -> Iterator[tuple[str, str, str]]:
    """Section, key and value of each line; a line that is none of that fails."""
    section = ""
    for line in (DEPLOY / name).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            assert line.endswith("]")
            section = line.strip("[]")
            assert section in SECTIONS
            continue
        assert SETTING.fullmatch(line), line
        key, _, value = line.partition("=")
        yield section, key, value


def environment(name: str) -> dict[str, str]:
    lines = (DEPLOY / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize(
    ("name", "role", "settings"),
    [
        ("fedrecgel-superlink.service", "superlink", "superlink.env"),
        ("fedrecgel-supernode@.service", "supernode", "supernode.env"),
    ],
)
def test_units_start_what_exists_with_options_that_exist(
    name: str, role: str, settings: str
) -> None:
    lines = list(unit(name))
    assert {section for section, _, _ in lines} == SECTIONS
    ((command,),) = [[v for _, k, v in lines if k == "ExecStart"]]
    variables = environment(settings)
    used = set(re.findall(r"\$\{(\w+)\}", command))
    assert used == set(variables)
    for key, value in variables.items():
        command = command.replace(f"${{{key}}}", value)
    program, given_role, *arguments = shlex.split(command.replace("%i", "node-000"))
    assert (program, given_role) == ("/opt/fedrecgel/bin/fedrecgel", role)
    options = parsed(role, arguments)
    if role == "supernode":
        assert options["superlink"] == variables["SUPERLINK"]
        check_node_config(str(options["node_config"]))
    else:
        assert options["enable_supernode_auth"] is True


def settings_of(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _, key, value in unit(name):
        found.setdefault(key, []).append(value)
    return found


def test_a_node_that_is_refused_is_started_until_it_is_let_in() -> None:
    """Flower ends a keyed node (code 305) for up to a minute after its last life."""
    found = settings_of("fedrecgel-supernode@.service")
    assert found["Restart"] == ["always"]
    # systemd gives up after 5 starts in 10 s: starts that are further apart never count so.
    assert int(found["RestartSec"][0]) * 5 > 10
    assert "StartLimitBurst" not in found


@pytest.mark.parametrize("name", ["fedrecgel-superlink.service", "fedrecgel-supernode@.service"])
def test_units_write_to_their_own_private_folder_only(name: str) -> None:
    found = settings_of(name)
    for key, value in {
        "NoNewPrivileges": "true",
        "ProtectSystem": "strict",
        "ProtectHome": "true",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
    }.items():
        assert found[key] == [value]
    state = f"/var/lib/{found['StateDirectory'][0]}"
    assert found["WorkingDirectory"] == [state]
    assert found["User"] == ["fedrecgel"]
    # Homes, run folders, data and database: a folder elsewhere is read-only to the unit.
    written = [value.split("=", 1)[1] for value in found["Environment"]]
    written += re.findall(r"--database (\S+)|data-path='([^']+)'", found["ExecStart"][0])[0]
    assert all(path.startswith(state) for path in written if path)


def test_compose_file() -> None:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = found["services"]
    assert set(services) == {"superlink", "node-000", "node-001"}
    named = {v.split(":")[0] for s in services.values() for v in s["volumes"]}
    assert {name for name in named if not name.startswith(".")} == set(found["volumes"])
    for name, service in services.items():
        role, *arguments = service["command"]
        options = parsed(role, arguments)
        assert role == ("superlink" if name == "superlink" else "supernode")
        if role == "supernode":
            check_node_config(str(options["node_config"]))
            assert name in str(options["auth_supernode_private_key"])
            assert f"./prepared/{name}:/data" in service["volumes"]
            assert service["depends_on"]["superlink"]["condition"] == "service_healthy"
    check = services["superlink"]["healthcheck"]["test"]
    assert check[:3] == ["CMD", "python", "-c"]
    compile(check[3], "healthcheck", "exec")
    port = parsed("superlink", services["superlink"]["command"][1:])["port"]
    assert f"https://localhost:{port}/health" in check[3]
    assert f"{port}:{port}" in services["superlink"]["ports"]
    # The server's certificate of the comment above holds for the name the nodes call.
    assert "--host superlink`" in (DEPLOY / "compose.yaml").read_text()


def test_dockerfile_copies_what_there_is_and_does_not_run_as_root() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT"}
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    instructions = [line.split(maxsplit=1)[0] for line in lines]
    assert set(instructions) <= known
    assert instructions[0] == "FROM"
    for line in (line for line in lines if line.startswith("COPY")):
        *sources, _ = line.split()[1:]
        assert all((ROOT / source).exists() for source in sources)
    assert instructions.index("USER") < instructions.index("ENTRYPOINT")


def commands_of_the_page() -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    return [c for c in commands if c and c[0] in PROGRAMS]


def test_the_pages_commands_have_options_that_exist() -> None:
    from typer.main import get_command

    from server_app.cli_app import app

    commands = commands_of_the_page()
    assert len(commands) > 8
    group = get_command(app)
    for words in commands:
        role = words[1] if words[0] == "fedrecgel" else words[0].removeprefix("flower-")
        if role in PARSERS:
            arguments = words[2:] if words[0] == "fedrecgel" else words[1:]
            options = parsed(role, [a for a in arguments if a != "--cold"])
            if role == "supernode":
                check_node_config(str(options["node_config"]))
            continue
        command, rest = group, words[1:]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(role, rest)
