"""`pattern service …`: a server that systemd or launchd starts at boot, watches and restarts."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import click

from pattern_core.errors import NotFound, Unavailable
from pattern_server.cli.command import ExitCode, PlainGroup, local
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import Config, file_of

UNIT = "pattern.service"
LABEL = "io.pattern.server"
STATE = Path("/var/lib/pattern")  # of a system service; systemd makes it for the service's own user
# Hardening that also a user's systemd can do; the second part needs the system's.
CONFINED = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
UMask=0077
"""
CONFINED_MORE = """\
DynamicUser=yes
StateDirectory=pattern
StateDirectoryMode=0700
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
CapabilityBoundingSet=
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
"""

service = PlainGroup("service", help="Start the server at boot: install, uninstall, status.")
system_option = click.option("--system", "is_system", is_flag=True, help="For the machine instead of this user.")


@service.add("install", "--print", runs=local)
@system_option
@click.option("--print", "is_shown", is_flag=True, help="Print the service's file, and change nothing.")
def install(config: Config, output: Output, is_system: bool, is_shown: bool) -> None:
    """Start the server now and at every boot, by systemd, or by launchd on macOS.

    With `--system` the data are where systemd keeps the state of services, in the folder pattern. The service has no
    variables of this shell: put keys into pattern.env in the data directory, a line NAME=VALUE each, or use
    credentials of systemd.
    """
    text = launch_agent(config) if sys.platform == "darwin" else unit_of(config, is_system=is_system)
    if is_shown:
        output.say(text.rstrip())
        return
    path = place_of_service(is_system=is_system)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if sys.platform == "darwin":
        manage("launchctl", "bootstrap", f"gui/{os.getuid()}", str(path))
    else:
        manage(*systemctl(is_system=is_system), "daemon-reload")
        manage(*systemctl(is_system=is_system), "enable", "--now", UNIT)
    output.result({"file": str(path)}, f"Installed {path}, and started the server.")
    if not is_system and sys.platform != "darwin":
        output.note("It runs while you are logged in. To start it at boot: loginctl enable-linger")


@service.add("uninstall", runs=local)
@system_option
def uninstall(_config: Config, output: Output, is_system: bool) -> None:
    """Stop the server and no longer start it; the data stay."""
    path = installed(is_system=is_system)
    if sys.platform == "darwin":
        manage("launchctl", "bootout", f"gui/{os.getuid()}/{LABEL}")
    else:
        manage(*systemctl(is_system=is_system), "disable", "--now", UNIT)
    path.unlink()
    output.result({"deleted": str(path)}, f"Deleted {path}. The data stay where they are.")


@service.add("status", runs=local)
@system_option
def status(_config: Config, output: Output, is_system: bool) -> ExitCode:
    """Show whether the service is installed and runs."""
    path = installed(is_system=is_system)
    is_mac = sys.platform == "darwin"
    asked = ("print", f"gui/{os.getuid()}/{LABEL}") if is_mac else ("is-active", UNIT)
    command = ("launchctl", *asked) if is_mac else (*systemctl(is_system=is_system), *asked)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    is_active = ended.returncode == 0
    output.record({"file": str(path), "active": is_active})
    return DONE if is_active else FAILED


def unit_of(config: Config, *, is_system: bool) -> str:
    """Return the unit of systemd; its server reports when it is ready, and every few seconds that it is alive."""
    data_dir = STATE if is_system else config.data_dir
    command = " ".join(f'"{_escaped(part)}"' for part in command_of(config, data_dir))
    return f"""\
[Unit]
Description=Pattern, a server for long-lived agents
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
EnvironmentFile=-{str(data_dir / "pattern.env").replace("%", "%%")}
Restart=on-failure
RestartSec=2
WatchdogSec=60
TimeoutStartSec=120
TimeoutStopSec={config.supervisor.drain_s + 20:.0f}
LimitNOFILE=65536
{CONFINED}{CONFINED_MORE if is_system else ""}
[Install]
WantedBy={"multi-user.target" if is_system else "default.target"}
"""


def launch_agent(config: Config) -> str:
    """Return the property list of launchd."""
    log = str(config.data_dir / "server.log")
    content = {
        "Label": LABEL,
        "ProgramArguments": command_of(config, config.data_dir),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": int(config.supervisor.drain_s) + 20,
        "SoftResourceLimits": {"NumberOfFiles": 65536},
        "StandardErrorPath": log,
        "Umask": 0o077,
    }
    return plistlib.dumps(content).decode()


def command_of(config: Config, data_dir: Path) -> list[str]:
    """Return the command that the service runs."""
    file = file_of(config)
    named = [] if file is None or file.parent == data_dir else ["--config", str(file)]
    return [sys.executable, "-m", "pattern_server", "serve", "--data-dir", str(data_dir), *named]


def _escaped(text: str) -> str:
    """Return a text for a unit, where %, $, quotes and backslashes have a meaning."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")


def place_of_service(*, is_system: bool) -> Path:
    """Return where the service's file is."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    return Path("/etc/systemd/system", UNIT) if is_system else Path.home() / ".config/systemd/user" / UNIT


def installed(*, is_system: bool) -> Path:
    """Return the service's file. Raises NotFound: there is none."""
    path = place_of_service(is_system=is_system)
    if not path.exists():
        raise NotFound(f"there is no {path}; to create it: pattern service install{' --system' if is_system else ''}")
    return path


def systemctl(*, is_system: bool) -> tuple[str, ...]:
    """Return the beginning of a command to systemd."""
    return ("systemctl",) if is_system else ("systemctl", "--user")


def manage(*command: str) -> None:
    """Run a command of the service manager.

    Raises:
        Unavailable: it is not there, or it failed; the message has its words.
    """
    if shutil.which(command[0]) is None:
        raise Unavailable(
            f"{command[0]} is not installed; start `pattern serve` with the service manager that you have"
        )
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise Unavailable(f"`{' '.join(command)}` failed: {ended.stderr.strip() or ended.returncode}")
