"""Many lives on one world, each cut off at its point; then rest, and the whole check. Forks: no threads here.

A life is a forked child: the parent has imported everything, so that a life costs milliseconds. SIGKILL does not lose
what the kernel holds, so the worlds stand in memory (`/dev/shm`) where there is one; losing power is tested elsewhere.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import trio

from tests.crash.checker import check_after_death, check_at_rest
from tests.crash.life import Life, Scene, Settings, prepare, rehearse
from tests.crash.moments import Point, Trigger, choose
from tests.crash.outside import World
from tests.sources import ROOT

LIVES_MAX = 24  # of one world, before it comes to rest and is checked as a whole
MESSAGES = 1  # of each client in a life
RESTS_MAX = 20
STUCK_EVERY, STUCK = 8, 6  # of so many worlds one, whose first lives all end when a model is asked
CUT_OFF = 3  # exit status of a life that was cut off and could still tell
FAILED = 70  # exit status of a life that ended with an error
HANGS_S = 120
FORK_TRIALS = 60
FORK_AGAIN_S = 1.0
LAST_WORDS = 2_000  # characters of what a worker wrote to standard error before it died


class Ending(Protocol):
    """How a life ends: led in a forked child by `lead`, which does not return, or tells whether it was cut off."""

    @property
    def label(self) -> str:
        """What kind of end it is, for the table."""
        ...

    def lead(self, world: World, number: int, chance: random.Random, scene: Scene) -> bool:
        """Lead the life; False if it ended by itself."""
        ...


ChooseEnding = Callable[[Settings, int, random.Random], Ending]


@dataclass(frozen=True, slots=True)
class Killed:
    """The process dies at a point."""

    point: Point

    @property
    def label(self) -> str:
        """The moment and its phase."""
        return f"{self.point.moment} {self.point.phase}"

    def lead(self, world: World, number: int, chance: random.Random, scene: Scene) -> bool:
        """Lead the life; returns only if its point was not reached."""
        trigger = Trigger(self.point)
        trigger.arm()
        life = Life(world, number, trigger, chance, scene)
        trio.run(lambda: life.lead(messages=MESSAGES))
        return False


def lead_to_rest(world: World, number: int, chance: random.Random, scene: Scene) -> bool:
    """Lead a life without new messages that ends by itself, when nothing is left to do."""
    life = Life(world, number, Trigger(None), chance, scene)
    trio.run(lambda: life.lead(messages=0))
    return False


def choose_kill(settings: Settings, number: int, chance: random.Random) -> Ending:
    """The kill points in turn; now and then the same one again and again, until the steps there are given up."""
    world, life = divmod(number, LIVES_MAX)
    if world % STUCK_EVERY == 1 and life < STUCK:
        return Killed(Point("model", "before"))
    return Killed(choose(settings.points, number, chance))


@dataclass(slots=True)
class Tally:
    """What happened: lives cut off at their point, lives that ended before it, and what the checks found."""

    kills: Counter[str] = field(default_factory=Counter)
    survived: int = 0
    worlds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        """How many lives were cut off."""
        return self.kills.total()

    def add(self, other: Tally) -> None:
        """Take in what another tally counted."""
        self.kills += other.kills
        self.survived += other.survived
        self.worlds += other.worlds
        self.counts += other.counts
        self.violations += other.violations

    def table(self, seconds: float) -> str:
        """All of it as text; `seconds` is how long it took."""
        lines = [
            f"{self.killed} lives were cut off in {seconds:.0f} s, {self.survived} ended by themselves;"
            f" {self.worlds} worlds came to rest and were checked",
            "",
            *(f"{label:<48}{count:>8}" for label, count in sorted(self.kills.items())),
            "",
            *(f"{name:<48}{count:>8}" for name, count in sorted(self.counts.items())),
            "",
            f"violations: {len(self.violations)}",
            *self.violations[:20],
            "",
        ]
        return "\n".join(lines)

    def dump(self) -> str:
        """As JSON."""
        return json.dumps([self.kills, self.survived, self.worlds, self.counts, self.violations])

    @classmethod
    def load(cls, text: str) -> Tally:
        """The inverse of `dump`."""
        kills, survived, worlds, counts, violations = json.loads(text)
        return cls(Counter(kills), survived, worlds, Counter(counts), violations)


def tally_of(*arguments: str) -> Tally:
    """What a Python process prints of its tally; forking needs a process without threads."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, f"it ended with {done.returncode}: {done.stderr}"
    return Tally.load(done.stdout)


def scratch() -> Path:
    """A new folder in memory if the machine has one, else among the temporary files."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="pattern-crash-", dir=memory if os.access(memory, os.W_OK) else None))


def chance_of(*names: object) -> random.Random:
    """Chance that is the same for the same names."""
    return random.Random("/".join(map(str, names)))


def _forked() -> int:
    """As `os.fork`, but a machine that has no room for another process just now is asked again for some time."""
    for _trial in range(FORK_TRIALS):
        with suppress(BlockingIOError):
            return os.fork()
        time.sleep(FORK_AGAIN_S)
    return os.fork()


def fork(world: World, task: Callable[[], bool]) -> int:
    """Run `task` in a child and return its wait status. What it writes to standard error is a trouble of the world."""
    child = _forked()
    if child:
        return os.waitpid(child, 0)[1]
    status = FAILED
    try:
        descriptor = os.open(world.troubles, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(descriptor, 2)
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=2)
        gc.disable()  # a collection would touch, and so copy, all that is shared with the parent
        status = CUT_OFF if task() else 0
    except BaseException:  # noqa: BLE001  # the child's border: whatever went wrong is reported to the parent
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def _was_cut_off(status: int) -> bool:
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM)
    return os.WEXITSTATUS(status) == CUT_OFF


class Series:
    """Worlds `first`, `first + step` … of a seed, until enough lives were cut off or a violation was found, also by
    another series in the same folder.

    `place` is a file that says where the series is.
    """

    def __init__(
        self, seed: int, settings: Settings, choose_ending: ChooseEnding, *, folder: Path, place: Path
    ) -> None:
        self.tally = Tally()
        self._place = place
        self._choose_ending = choose_ending
        self._seed = seed
        self._folder = folder
        self._scenes = [Scene(replace(settings, resumes_max=resumes_max)) for resumes_max in (50, 3)]

    def run(self, points: int, *, first: int = 0, step: int = 1) -> Tally:
        """Cut off `points` lives."""
        gc.collect()
        gc.freeze()  # children share these pages
        number = first
        stop = self._folder / "stop"
        while self.tally.killed < points and not stop.exists():
            self.one_world(number, points)
            number += step
            if self.tally.violations:
                stop.touch()
        return self.tally

    def one_world(self, number: int, points: int) -> None:
        """Lead a world's lives, bring it to rest and check it; a world with violations is kept for looking at."""
        world = World(self._folder / f"world-{number}")
        prepare(world)
        scene = self._scenes[number % 2]
        life = 0
        while life < LIVES_MAX and self.tally.killed < points and not self.tally.violations:
            self._one_life(world, number, life, scene)
            life += 1
        for _rest in range(RESTS_MAX):
            if self.tally.violations or self._rested(world, number, life, scene):
                break
            life += 1
        self.tally.worlds += 1
        if not self.tally.violations:
            problems, counts = check_at_rest(world, resumes_max=scene.settings.resumes_max)
            self.tally.counts += counts
            self._blame(world, number, life, problems)
        if not self.tally.violations:
            shutil.rmtree(world.folder)

    def _one_life(self, world: World, number: int, life: int, scene: Scene) -> None:
        self._place.write_text(f"world {number}, life {life}")  # what remains of a worker that dies
        chance = chance_of(self._seed, number, life)
        ending = self._choose_ending(scene.settings, number * LIVES_MAX + life, chance)
        status = fork(world, lambda: ending.lead(world, life, chance, scene))
        if _was_cut_off(status):
            self.tally.kills[ending.label] += 1
        elif status == 0:
            self.tally.survived += 1
        else:
            self._blame(world, number, life, [f"unfinished: {ending} ended with status {status}"])
        self._blame(world, number, life, check_after_death(world))

    def _rested(self, world: World, number: int, life: int, scene: Scene) -> bool:
        """Lead a life that is not cut off."""
        self._place.write_text(f"world {number}, life {life}, at rest")
        chance = chance_of(self._seed, number, life)
        status = fork(world, lambda: lead_to_rest(world, life, chance, scene))
        self._blame(world, number, life, check_after_death(world))
        return status == 0

    def _blame(self, world: World, number: int, life: int, problems: list[str]) -> None:
        where = f" [seed {self._seed}, world {number}, life {life}, {world.folder}]"
        self.tally.violations += [problem + where for problem in problems]


def run_parallel(
    seed: int,
    points: int,
    settings: Settings,
    choose_ending: ChooseEnding,
    *,
    workers: int = 2,
    discard: bool = False,
) -> Tally:
    """Share the points among `workers` forked processes. `discard` removes worlds with violations, too.

    A worker that dies is a violation that says how, where it was, and what its last words were.
    """
    folder = scratch()
    scene = Scene(settings)
    trio.run(rehearse, folder / "rehearsal", scene)  # here, so that workers and lives read no file of the project
    assert threading.active_count() == 1, "a fork takes only its own thread along"
    children = []
    for worker in range(workers):
        share = points // workers + (worker < points % workers)
        series = Series(seed, settings, choose_ending, folder=folder, place=folder / f"place-{worker}")
        child = _forked()
        if child == 0:
            _work(series, share, folder / f"tally-{worker}", (worker, workers))
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    total = Tally()
    for worker, code in enumerate(codes):
        result = folder / f"tally-{worker}"
        if code == 0:
            total.add(Tally.load(result.read_text()))
            result.unlink()
        else:
            total.violations.append(_died(folder, worker, code, seed))
    if not total.violations or discard:
        shutil.rmtree(folder)
    return total


def _died(folder: Path, worker: int, code: int, seed: int) -> str:
    """Words for the death of a worker."""
    how = f"exit status {code}" if code > 0 else signal.Signals(-code).name
    place, words = (_text(folder / f"{name}-{worker}") for name in ("place", "tally"))
    where = f"[seed {seed}, {place or 'before its first life'}, {folder}]"
    return f"unfinished: worker {worker} died of {how} {where}; its last words: {words[-LAST_WORDS:] or 'none'}"


def _text(path: Path) -> str:
    return path.read_text(errors="replace").strip() if path.exists() else ""


def _work(series: Series, points: int, result: Path, share: tuple[int, int]) -> None:
    """What a worker does: it leaves its tally in `result`, and until then all that it writes to standard error."""
    status = 1
    try:
        os.dup2(os.open(result, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
        faulthandler.enable(file=2)
        result.write_text(series.run(points, first=share[0], step=share[1]).dump())
        status = 0
    except BaseException:  # noqa: BLE001  # the worker's border: a forked child must never return to its parent's stack
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def command(
    parser: argparse.ArgumentParser,
    amount: str,
    most: int,
    plan: Callable[[argparse.Namespace], tuple[Settings, ChooseEnding]],
) -> int:
    """Read the command line, cut off lives, and print what came of it; the exit status.

    `amount` is the option that says how many, and `plan` decides by the options how.
    """
    parser.add_argument(f"--{amount}", type=int, default=most)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the tally as JSON instead of the table")
    parser.add_argument("--discard", action="store_true", help="keep no world to look at")
    options = parser.parse_args()
    started = time.monotonic()
    points = getattr(options, amount)
    tally = run_parallel(options.seed, points, *plan(options), workers=options.workers, discard=options.discard)
    sys.stdout.write(tally.dump() if options.json else tally.table(time.monotonic() - started))
    return 1 if tally.violations else 0
