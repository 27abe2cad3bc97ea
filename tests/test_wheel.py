"""What is installed from the wheel, away from the checkout and without extras, is whole: it chats and runs the demo."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.sources import ROOT

TIMEOUT_S = 150


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
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def required(*requires: str) -> list[Distribution]:
    """All that pip would install for some requirements, as it is installed here."""
    seen: dict[str, Distribution] = {}
    left = [Requirement(text) for text in requires]
    while left:
        one = left.pop()
        if str(one) in seen:
            continue
        found = seen[str(one)] = distribution(one.name)
        for below in map(Requirement, found.requires or ()):
            marker = below.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *one.extras)):
                left.append(below)
    return list(seen.values())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment with the wheel in it; this one lends what the wheel requires."""
    folder = tmp_path_factory.mktemp("wheel")
    # No isolation and no index: what builds the wheel is among the developers' dependencies.
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    install = ("install", "--quiet", "--no-index", "--no-deps", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    code = (
        "import sysconfig; print(sysconfig.get_path('purelib'))\n"
        "from importlib.metadata import requires; print(*(one for one in requires('pattern-server') if ';' not in one))"
    )
    site, requires = run(python, "-c", code, cwd=folder).splitlines()
    for lent in required(*requires.split()):
        for name in {file.parts[0] for file in lent.files or ()} - {"..", "__pycache__"}:
            if not (Path(site) / name).exists():
                (Path(site) / name).symlink_to(Path(str(lent.locate_file(name))))
    return python.parent


@pytest.mark.slow
def test_the_wheel_carries_code_and_migrations(installed: Path, tmp_path: Path) -> None:
    code = (
        "import pattern_db, pattern_server\n"
        "from pattern_db.files import shipped\n"
        "print(pattern_server.__file__, *map(shipped, ('migrations/global', 'migrations/constellation', "
        "'data/models.toml', 'data/api.toml')), pattern_server.__path__[0] + '/http/docs/page.js')"
    )
    for place in run(installed / "python", "-c", code, cwd=tmp_path).split():
        assert Path(place).is_relative_to(installed.parent) and Path(place).exists()
    assert "pattern, version" in run(installed / "pattern", "--version", cwd=tmp_path)


@pytest.mark.slow
def test_the_installed_program_chats_and_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    pattern = installed / "pattern"
    shown = run(pattern, "demo", cwd=tmp_path)
    assert "Everything above was checked" in shown
    assert "pattern search --mode meaning" in shown
    assert list(tmp_path.iterdir()) == [], "the demo leaves nothing behind"
    for command in ("constellation create home", "agent create ada -c home"):
        run(pattern, *command.split(), cwd=tmp_path)
    run(pattern, "chat", "-c", "home", "-a", "ada", "Remember that tea is at five.", cwd=tmp_path)
    assert "Tea is at five." in run(pattern, "search", "-c", "home", "tea", cwd=tmp_path)
