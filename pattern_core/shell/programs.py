"""What programs do, as tables: which only look, which reach the network, which are never run here.

A program that stands nowhere is taken for one that changes files. Options count by prefix, as GNU's `getopt_long`
reads them, so `sort --outp=f` is `sort --output=f`.

Sources: the manuals of GNU coreutils 9.4, findutils 4.9, diffutils 3.10, grep 3.11, git 2.43, procps-ng 4; POSIX 2017.
"""

from __future__ import annotations

from collections.abc import Mapping

# Program → options that make it write or run something. Short options by their letter, long ones by name.
READERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            *("ls", "dir", "vdir", "cat", "tac", "head", "tail", "wc", "nl", "od", "cut", "paste", "join", "comm"),
            *("fold", "fmt", "expand", "unexpand", "rev", "tr", "cmp", "diff", "stat", "du", "df", "pwd"),
            *("echo", "true", "false", ":", "test", "[", "whoami", "id", "groups", "uname", "arch", "nproc"),
            *("basename", "dirname", "realpath", "readlink", "md5sum", "sha1sum", "sha224sum", "sha256sum"),
            *("sha384sum", "sha512sum", "b2sum", "cksum", "sum", "ps", "pgrep", "uptime", "free", "seq", "expr"),
            *("factor", "sleep", "printenv", "locale", "tty", "getconf", "type", "which", "whereis", "strings"),
            *("hexdump", "column", "grep", "egrep", "fgrep", "zgrep", "cal", "shift", "break"),
            *("continue", "return", "exit", "times", "umask", "cd", "pushd", "popd", "dirs", "help", "pidof"),
            *("lscpu", "lsblk", "lsmem", "vmstat", "who", "w", "logname", "jq", "base32", "base64", "zcat", "numfmt"),
        ),
        frozenset[str](),
    ),
    "file": frozenset(("C", "m", "compile", "magic-file")),
    "sort": frozenset(("o", "output", "T", "temporary-directory", "compress-program", "S", "files0-from")),
    "date": frozenset(("s", "set")),
    "tree": frozenset(("o", "R")),
    "rg": frozenset(("pre", "pre-glob", "hostname-bin", "z", "search-zip")),
    "yq": frozenset(("i", "inplace", "in-place", "s", "split-exp", "split-exp-file")),
    "diff3": frozenset(("diff-program",)),
}
# Readers whose second name is a file that they write.
SECOND_NAME_IS_WRITTEN = frozenset(("uniq", "xxd"))

NETWORK = frozenset(
    (
        *("curl", "wget", "wget2", "aria2c", "http", "https", "xh", "ssh", "scp", "sftp", "ftp", "lftp", "nc", "ncat"),
        *("netcat", "socat", "telnet", "ping", "ping6", "traceroute", "tracepath", "mtr", "dig", "host", "nslookup"),
        *("whois", "rsync", "pip", "pip3", "pipx", "uv", "poetry", "npm", "npx", "pnpm", "yarn", "bun", "gem"),
        *("bundle", "cargo", "go", "composer", "mvn", "gradle", "apt", "apt-get", "aptitude", "dnf", "yum", "zypper"),
        *("pacman", "apk", "brew", "snap", "flatpak", "conda", "mamba", "gh", "glab", "hub", "svn", "hg", "aws"),
        *("gcloud", "az", "mail", "sendmail", "mutt", "nmap", "tcpdump", "openssl", "w3m", "lynx", "links", "yt-dlp"),
    )
)

# Program → why it is refused.
DANGEROUS: Mapping[str, str] = {
    **dict.fromkeys(("sudo", "su", "doas", "pkexec", "runuser", "run0"), "acts as another user"),
    **dict.fromkeys(
        ("chroot", "unshare", "nsenter", "setpriv", "capsh", "bwrap", "firejail", "systemd-run", "setarch"),
        "changes the confinement of processes",
    ),
    **dict.fromkeys(
        ("docker", "podman", "nerdctl", "ctr", "kubectl", "lxc", "machinectl", "virsh"), "reaches beyond the sandbox"
    ),
    **dict.fromkeys(
        ("mount", "umount", "swapon", "swapoff", "losetup", "cryptsetup", "mkswap", "fdisk", "sfdisk", "parted"),
        "changes disks",
    ),
    **dict.fromkeys(
        ("wipefs", "blkdiscard", "hdparm", "badblocks", "shred", "fsck", "tune2fs", "debugfs"), "changes disks"
    ),
    **dict.fromkeys(
        ("shutdown", "reboot", "halt", "poweroff", "init", "telinit", "kexec", "systemctl", "service", "launchctl"),
        "changes the machine's services",
    ),
    **dict.fromkeys(
        ("crontab", "at", "batch", "insmod", "rmmod", "modprobe", "sysctl", "iptables", "ip6tables", "nft", "ufw"),
        "changes the machine's settings",
    ),
    **dict.fromkeys(
        ("passwd", "chpasswd", "useradd", "userdel", "usermod", "groupadd", "groupdel", "visudo", "adduser", "deluser"),
        "changes the machine's users",
    ),
    **dict.fromkeys(
        ("eval", "source", ".", "alias", "enable", "bind", "complete", "compgen", "fc", "hash", "mapfile", "readarray"),
        "makes the shell run what cannot be read beforehand",
    ),
    **dict.fromkeys(("gdb", "strace", "ltrace", "bpftrace", "perf"), "looks into other processes"),
    **dict.fromkeys(("screen", "tmux", "script", "expect", "unbuffer"), "runs commands in terminals of their own"),
    **dict.fromkeys(("parallel", "watch", "entr", "busybox", "toybox"), "runs commands that it puts together itself"),
}

# Programs that run text as commands or code.
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash", "csh", "tcsh"))
INTERPRETERS = frozenset(
    (
        "python",
        "python2",
        "python3",
        "perl",
        "ruby",
        "node",
        "nodejs",
        "deno",
        "php",
        "lua",
        "Rscript",
        "tclsh",
        "osascript",
    )
)

# Wrapper → its options that take a value, in the same word or the next. What follows its options is the command that
# it runs, so an option that is not known makes that uncertain.
WRAPPERS: Mapping[str, frozenset[str]] = {
    "nice": frozenset(("-n", "--adjustment")),
    "ionice": frozenset(("-c", "-n", "--class", "--classdata")),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "stdbuf": frozenset(("-i", "-o", "-e", "--input", "--output", "--error")),
    "timeout": frozenset(("-s", "-k", "--signal", "--kill-after")),
    "time": frozenset(),
    "command": frozenset(),
    "builtin": frozenset(),
    "exec": frozenset(("-a",)),
    "env": frozenset(("-u", "--unset", "-C", "--chdir")),
    "xargs": frozenset(
        (
            *("-I", "-L", "-n", "-P", "-s", "-d", "-E", "-a"),
            *("--max-args", "--max-procs", "--max-chars", "--delimiter", "--arg-file"),
        )
    ),
}
# Wrapper → its options without a value.
WRAPPER_FLAGS: Mapping[str, frozenset[str]] = {
    "ionice": frozenset(("-t", "--ignore")),
    "setsid": frozenset(("-c", "-f", "-w", "--ctty", "--fork", "--wait")),
    "timeout": frozenset(("-v", "--verbose", "--foreground", "--preserve-status")),
    "time": frozenset(("-p",)),
    "command": frozenset(("-p",)),
    "exec": frozenset(("-c", "-l")),
    "env": frozenset(("-i", "--ignore-environment", "-0", "--null", "-v", "--debug")),
    "xargs": frozenset(
        ("-0", "-r", "-t", "-x", "-i", "--null", "--no-run-if-empty", "--verbose", "--exit", "--replace", "-i{}")
    ),
}
# Wrapper → how many words of its own stand between its options and the command.
WRAPPER_OPERANDS: Mapping[str, int] = {"timeout": 1}

GIT_READERS = frozenset(
    (
        *("status", "log", "show", "rev-parse", "ls-files", "ls-tree", "blame", "annotate", "describe", "shortlog"),
        *("cat-file", "rev-list", "name-rev", "count-objects", "version", "help", "merge-base", "show-ref", "diff"),
        *("for-each-ref", "whatchanged", "cherry", "range-diff", "diff-tree", "diff-files", "diff-index", "var"),
        *("check-ignore", "check-attr", "verify-commit", "verify-tag", "grep", "reflog"),
    )
)
GIT_NETWORK = frozenset(("clone", "fetch", "pull", "push", "ls-remote", "submodule", "remote", "archive", "send-email"))
# Options of git that run a program or write a file. Source: git(1), git-diff(1), git-grep(1).
GIT_RISKY = frozenset(
    (
        *("c", "exec-path", "config-env", "ext-diff", "textconv", "output", "O", "open-files-in-pager", "upload-pack"),
        *("receive-pack", "paginate", "p", "filters"),
    )
)

# Variables by which whoever sets them chooses what programs or the shell run.
RULING_VARIABLES = frozenset(
    (
        *("PATH", "BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "PS0", "PS4", "PROMPT_COMMAND", "SHELL"),
        *("BASH_LOADABLES_PATH", "GLOBIGNORE", "EXECIGNORE", "HOME", "TMPDIR", "BASH_XTRACEFD", "BASH_CMDS"),
        *("BASH_ALIASES", "FUNCNEST", "HISTFILE"),
    )
)
HARMLESS_VARIABLES = frozenset(
    ("LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI", "DEBUG", "VERBOSE")
)
# Directories that hold the system's own programs: `/bin/rm` is `rm`.
PROGRAM_FOLDERS = ("/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/")
# What a command that goes through whole trees must not be given.
SYSTEM_FOLDERS = (
    *("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root"),
    *("/run", "/sbin", "/srv", "/sys", "/usr", "/var", "/Users", "/System", "/Library", "/Applications"),
)
HARMLESS_TARGETS = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/63"))
