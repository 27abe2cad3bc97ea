"""What is installed from the wheel, away from the checkout, is whole: it runs the guided tour."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.sources import ROOT

DEMO_TIMEOUT_S = 150


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program with nothing of ours in its environment; its output, or a failure that shows it."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment with the wheel in it; what the wheel needs is lent by this one."""
    folder = tmp_path_factory.mktemp("wheel")
    # No isolation and no index: what builds the wheel is among the developers' dependencies.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    install = ("install", "--quiet", "--no-index", "--no-deps", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A .pth file adds the folder alone: the checkout that is installed in it stays out of sight.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


@pytest.mark.slow
def test_the_wheel_carries_code_and_migrations(installed: Path, tmp_path: Path) -> None:
    code = (
        "import pattern_db, pattern_server\n"
        "from pattern_db.files import shipped\n"
        "print(pattern_server.__file__, *map(shipped, ('migrations/global', 'migrations/constellation', "
        "'data/models.toml', 'data/api.toml')))"
    )
    for place in run(installed / "python", "-c", code, cwd=tmp_path).split():
        assert Path(place).is_relative_to(installed.parent)
    assert "pattern, version" in run(installed / "pattern", "--version", cwd=tmp_path)


@pytest.mark.slow
def test_the_installed_program_runs_the_tour(installed: Path, tmp_path: Path) -> None:
    shown = run(installed / "pattern", "demo", cwd=tmp_path)
    assert "All of it held" in shown
    assert list(tmp_path.iterdir()) == [], "the tour leaves nothing behind"
