"""Precedence, refusals and secrets of the configuration, what depends on the machine, and the program as a module."""

from __future__ import annotations

import resource
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from pattern_core.errors import NotFound
from pattern_core.limits import MemoryLimits
from pattern_server.config import (
    DEFAULT,
    MAY_BE_ZERO,
    ConfigError,
    check_exposure,
    file_of,
    is_loopback,
    known_variables,
    load,
    origin_of,
    reloaded,
    remote_token,
    require_data,
    service_manager,
    unknown_variables,
    user_state_dir,
    variable,
    write_default,
    write_private,
)
from pattern_server.sections import (
    SupervisorConfig,
    descriptors_max,
    is_confidential,
    is_loopback_url,
    raise_descriptor_limit,
)

pytestmark = pytest.mark.usefixtures("alone")


def write(text: str, name: str = "pattern.toml") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_nothing_configured_means_embedded() -> None:
    config = load()
    assert (config.host, config.port) == ("127.0.0.1", 8470)
    assert (config.default_provider, config.default_model) == ("embedded", "rules-1")
    assert config.providers["embedded"].kind == "embedded"
    assert config.embeddings.provider == "local"
    assert config.embeddings.dimensions is None
    assert config.limits.turn.steps_max == 50


def test_the_flag_beats_the_environment_beats_a_named_file_beats_the_users_folder(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(file: Path | None = None, **flags: object) -> tuple[Path, str]:
        config = load(file, **flags)
        return config.data_dir, config.data_dir_source

    assert found() == (alone / "share" / "pattern", DEFAULT)
    file = write('data_dir = "mine"', "etc/other.toml")
    assert found(file) == (alone / "etc" / "mine", str(alone / file))
    monkeypatch.setenv("PATTERN_CONFIG", str(file))
    assert found() == (alone / "etc" / "mine", str(alone / file))
    assert file_of(load()) == alone / file
    monkeypatch.setenv("PATTERN_DATA_DIR", "from-env")
    assert found() == (alone / "from-env", "PATTERN_DATA_DIR")
    assert found(data_dir=Path("from-flag")) == (alone / "from-flag", "--data-dir")
    assert load(data_dir=None, port=9).port == 9


def test_the_users_folder(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(alone))
    for empty in ("", "not/absolute"):
        monkeypatch.setenv("XDG_DATA_HOME", empty)
        monkeypatch.setenv("PATTERN_DATA_DIR", "")
        monkeypatch.setattr(sys, "platform", "linux")
        assert load().data_dir == alone / ".local/share/pattern"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert load().data_dir == alone / "Library/Application Support/pattern"
    file = write('data_dir = "~/mine"', "named.toml")
    assert load(file).data_dir == alone / "mine"


def test_the_data_directorys_file_counts_where_there_is_no_other(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_of(load()) is None
    for folder in (alone / "share" / "pattern", alone / "elsewhere"):
        write("port = 1", str(folder / "pattern.toml"))
    assert load().port == load(data_dir=Path("elsewhere")).port == 1
    assert file_of(load(data_dir=Path("elsewhere"))) == alone / "elsewhere" / "pattern.toml"
    write("port = 2")
    assert load().port == 2
    monkeypatch.setenv("PATTERN_CONFIG", str(write("port = 3", "named.toml")))
    assert load().port == 3


@pytest.mark.parametrize("name", ["pattern.toml", "share/pattern/pattern.toml"])
def test_only_a_file_that_was_named_says_where_the_data_is(alone: Path, name: str) -> None:
    file = write('data_dir = "mine"', name)
    with pytest.raises(
        ConfigError, match=r"name the directory with --data-dir or PATTERN_DATA_DIR, or name this file " "with"
    ):
        load()
    assert load(file).data_dir == alone / file.parent / "mine"


def test_no_data_directory_yet(alone: Path) -> None:
    config = load()
    with pytest.raises(NotFound, match=f"no data directory yet at {config.data_dir}; `pattern up` creates it"):
        require_data(config)
    require_data(config, creates=True)
    write("", "data/global.db")
    for creates in (False, True):
        with pytest.raises(NotFound, match=rf"at {config.data_dir}, but {alone}/data is one of an earlier version"):
            require_data(config, creates=creates)
    require_data(load(data_dir=Path("data")))
    require_data(load(data_dir=config.data_dir), creates=True)
    assert not config.data_dir.exists()


def test_a_named_file_must_exist() -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(Path("missing.toml"))


def test_nested_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_SUPERVISOR__DRAIN_S", "2.5")
    monkeypatch.setenv("PATTERN_LIMITS__TURN__STEPS_MAX", "7")
    monkeypatch.setenv("PATTERN_LIMITS__MEMORY__CHECKPOINT_UPDATE_COUNT", "5")
    config = load()
    assert config.supervisor.drain_s == 2.5
    assert config.limits.turn.steps_max == 7
    assert config.limits.turn.tool_calls_max == 100
    assert config.limits.memory == MemoryLimits(checkpoint_update_count=5)


@pytest.mark.parametrize("name", MAY_BE_ZERO)
def test_a_limit_may_be_zero_where_that_means_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "pattern.toml").write_text(f"[limits]\n{name} = 0")
    assert getattr(load(data_dir=tmp_path).limits, name) == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 1", "prot"),
        ("[supervisor]\nidle = 1", "supervisor.idle"),
        ("[limits]\nsteps = 1", "limits.steps: is not a known setting"),
        ("[limits.turn]\nsteps = 1", "limits.turn.steps: is not a known setting"),
        ("[limits]\nturn = 3", "limits.turn: is a section with its own settings"),
        ("[limits.turn]\nsteps_max = 0", "turn.steps_max"),
        ("[limits.memory]\ncheckpoint_updates = 5", "memory.checkpoint_updates"),
        ("[limits.memory]\ncheckpoint_interval_s = 0", "memory.checkpoint_interval_s"),
        ("[limits.turn]\nsteps_max = 'many'", "turn.steps_max"),
        ('[providers.x]\nkind = "opnai"', "providers.x.kind"),
        ('[providers.x]\nkind = "openai"\nurl = "y"', "providers.x.url"),
        ("[providers]\nx = 3", "providers.x"),
        ("providers = 3", "providers"),
        ("port = 70000", "port"),
        ('default_provider = "nobody"', "nobody"),
        ('bootstrap_token = "short"', "bootstrap_token"),
        ('[providers.x]\nkind = "openai"\n[providers.x.models."m"]\nwindows = 5', "providers.x"),
        ('[providers.x]\nkind = "openai"\n[providers.x.models."m"]\ntool_calls = "none"', "tool_calls"),
        ('[providers.x]\nkind = "openai"\n[providers.x.limits]\ncalls_max = 0', "providers.x.limits.calls_max"),
        ('[providers.x]\nkind = "openai"\n[providers.x.limits]\ncalls = 1', "limits.calls: is not a known setting"),
        ('[providers.x]\nkind = "openai"\napi_key = 5', "providers.x.api_key: Input should be a valid string"),
        ('[embeddings]\nprovider = "lokal"', "embeddings.provider is 'lokal'; there are compatible"),
        ('[embeddings]\nprovider = "embedded"', "embeddings.provider is 'embedded'"),
        ("[embeddings]\ndimensions = 0", "embeddings.dimensions"),
        ('[embeddings]\nruntime = "torch"', "embeddings.runtime"),
        ("[embeddings]\nspeed = 1", "embeddings.speed: is not a known setting"),
        ('[embeddings.former]\nprovider = "lokal"', "embeddings.former.provider is 'lokal'"),
        ("[embeddings.former.former]", "embeddings.former.former: is not a known setting"),
        ("[budgets]\nturn = {tokens = -1}", "budgets"),
        ("[budgets]\nturn = {dollars = 0.0000001}", "budgets"),
        ("[budgets]\nagent.week = {tokens = 1}", "budgets"),
        ("[budgets]\nturn = {euros = 1}", "budgets"),
        ("[budgets]\nagent = 5", "budgets.agent: is a section with its own settings"),
        ("[providers.mine]", "providers.mine.kind: is missing; set it to one of anthropic, embedded, google, openai"),
        ("[web]\nprots = [80]", "web.prots"),
        ("[web]\nports = [0]", "web.ports"),
        ('[web.search]\nkind = "searxng"', "needs base_url"),
        ('[web.search]\nkind = "brave"', "needs api_key"),
        ('[web.search]\nkind = "bing"', "web.search.kind"),
        ('[webhooks.secrets.pager]\nenv = "A"\nvalue = "b"', "secrets.pager needs one of env"),
        ("[webhooks.secrets.pager]", "secrets.pager needs one of env"),
        ("[mcp.x]", "needs either command or url"),
        ('[mcp.x]\ncommand = "a"\nurl = "http://b"', "needs either command or url"),
        ('[mcp.x]\nurl = "ftp://b"', "must begin with http:// or https://"),
        ('[mcp.x]\nurl = "http://b"\nargs = ["a"]', "args means nothing with url"),
        (
            '[mcp.x]\ncommand = "a"\ntoken_env = "T"\nheaders = {A = "b"}',
            "headers, token_env mean nothing with command",
        ),
        ('[mcp.a__b]\ncommand = "a"', "cannot be an MCP server's name"),
        ("".join(f'[mcp.x{n}]\ncommand = "a"\n' for n in range(17)), "mcp: Dictionary should have at most 16 items"),
        ('[mcp.x]\ncommand = "a"\neffect = "pure"', "mcp.x.effect"),
        ('[mcp.x]\ncommand = "a"\nidle = 3', "mcp.x.idle: is not a known setting"),
        ('[mcp.x]\ncommand = "a"\ncalls_max = 0', "mcp.x.calls_max"),
    ],
)
def test_misfits_name_the_key(text: str, named: str) -> None:
    write(text)
    with pytest.raises(ConfigError) as caught:
        load()
    assert named in caught.value.message and "short" not in caught.value.message


def test_broken_toml_is_named() -> None:
    write("port = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load()


def test_vendor_variables_make_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    config = load()
    openai = config.providers["openai"]
    assert openai.kind == "openai"
    assert openai.base_url == "http://localhost:1/v1"
    assert openai.api_key is not None
    assert openai.api_key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in repr(config)
    assert config.default_provider == "openai"
    assert config.default_model


def test_vendor_variables_beat_the_file_and_complete_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[providers.anthropic]\napi_key = "from-file"\n[providers.local]\nkind = "openai"\nbase_url = "http://x"')
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-env")
    config = load()
    key = config.providers["anthropic"].api_key
    assert key is not None
    assert key.get_secret_value() == "from-env"
    assert set(config.providers) == {"anthropic", "local", "embedded"}


def test_a_section_with_the_name_of_a_kind_means_that_kind() -> None:
    write('[providers.embedded]\n[providers.anthropic]\nbase_url = "http://x"\n[providers.mine]\nkind = "google"')
    config = load()
    assert {name: entry.kind for name, entry in config.providers.items()} == {
        "embedded": "embedded",
        "anthropic": "anthropic",
        "mine": "google",
    }
    assert config.default_provider == "anthropic", "rules are nobody's model where there is a language model"


def test_a_base_url_alone_configures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert load().default_provider == "embedded"


def test_key_by_name_of_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    write('default_provider = "router"\n[providers.router]\nkind = "openai"\napi_key_env = "ROUTER_KEY"')
    monkeypatch.setenv("ROUTER_KEY", "abc")
    config = load()
    key = config.providers["router"].api_key
    assert key is not None
    assert key.get_secret_value() == "abc"
    assert config.default_model == ""


def test_unknown_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATTERN_PROT", "1")
    monkeypatch.setenv("PATTERN_SUPERVISOR__DRAIN_S", "1")
    assert unknown_variables() == ["PATTERN_PROT"]


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == descriptors_max() > 256
        assert 8 <= SupervisorConfig().max_open <= descriptors_max() // 7
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_module_is_the_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pattern", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("pattern_server", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("pattern, version ")


SECTION = {"kind": "openai", "base_url": "http://127.0.0.1:11434/v1"}


def test_a_default_model_is_written_into_a_new_file_for_this_user_alone(alone: Path) -> None:
    path = write_default(load(), "ollama", "qwen3:8b", SECTION)
    assert path == alone / "share" / "pattern" / "pattern.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_text().startswith("# pattern.toml")
    config = reloaded(load())
    assert (config.default_provider, config.default_model) == ("ollama", "qwen3:8b")
    assert config.providers["ollama"].base_url == SECTION["base_url"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{}\n\n[providers.ollama]\nkind = "openai"\nbase_url = "http://127.0.0.1:11434/v1"\n'),
        (
            '# mine\nport = 1  # why\ndefault_model = "old"\n\n[web]\n# deep\n',
            '# mine\nport = 1  # why\n\n{}\n\n[web]\n# deep\n\n[providers.ollama]\nkind = "openai"\n'
            'base_url = "http://127.0.0.1:11434/v1"\n',
        ),
        (
            ' [providers.ollama]\nkind = "openai"\nbase_url = "http://elsewhere/v1"\n',
            '{}\n\n [providers.ollama]\nkind = "openai"\nbase_url = "http://elsewhere/v1"\n',
        ),
    ],
)
def test_a_file_that_exists_keeps_all_else(before: str, after: str) -> None:
    path = write(before)
    assert write_default(load(), "ollama", "qwen3:8b", SECTION) == path.absolute()
    lines = 'default_provider = "ollama"\ndefault_model = "qwen3:8b"'
    assert path.read_text() == after.replace("{}", lines)
    assert load().default_model == "qwen3:8b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('default_model = """\nmine\n"""\n', "cannot be changed safely. Write into it:\ndefault_provider"),
        ("providers = 3\n", "is not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_changed_safely_is_left_alone(text: str, words: str) -> None:
    config = load()
    config._file = path = write(text).absolute()
    with pytest.raises(ConfigError, match=words):
        write_default(config, "ollama", "qwen3:8b", SECTION)
    assert path.read_text() == text


def test_a_private_file_is_written_whole_or_not_at_all(alone: Path) -> None:
    write_private(alone / "deep" / "file", "one")
    write_private(alone / "deep" / "file", "two")
    assert [path.read_text() for path in (alone / "deep").iterdir()] == ["two"]


SIGN_IN = {
    "home": {"issuer": "https://id.example.org", "client_id": "p", "client_secret_env": "AT_HOME"},
    "chat": {
        **{name: f"https://chat.example.org/{name}" for name in ("authorization_url", "token_url", "user_url")},
        "client_id": "p",
    },
    "sky": {"atproto_url": "https://bsky.social"},
}


def test_providers_to_sign_in_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AT_HOME", "s3cret")
    config = load(sign_in=SIGN_IN)
    assert config.sign_in["home"].client_secret is not None
    assert config.sign_in["home"].client_secret.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(config)
    assert config.sign_in["chat"].client_secret is None
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"issuer": "http://id.example.org"}, "must begin with https://"),
        ({"issuer": "https://"}, "must begin with https://"),
        ({"issuer": "http://[1"}, "must begin with https://"),
        ({"issuer": None}, "needs either issuer"),
        ({"token_url": "https://id.example.org/token"}, "needs either issuer"),
        ({"atproto_url": "https://bsky.social"}, "needs either issuer"),
        ({"issuer": None, "atproto_url": "http://bsky.social"}, "must begin with https://"),
        ({"client_id": ""}, "client_id"),
        ({"client_id": None}, "client_id"),
        ({"redirect_url": "https://pattern.example.org/"}, "redirect_url must be"),
    ],
)
def test_a_provider_that_cannot_be_signed_in_with(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(sign_in={"home": {**SIGN_IN["home"], **changes}})
    with pytest.raises(ConfigError, match="name"):
        load(sign_in={"a/b": SIGN_IN["home"]})


def test_addresses_that_keep_a_secret() -> None:
    for url in ("https://id.example.org", "http://127.0.0.1:8080/realm", "http://localhost", "http://[::1]:1/"):
        assert is_confidential(url)
    for url in ("http://id.example.org", "ftp://127.0.0.1", "", "http://[", "https:///path"):
        assert not is_confidential(url)
    for url in ("http://127.0.0.1:1/", "http://localhost:80", "http://[::1]:9/back"):
        assert is_loopback_url(url)
    for url in ("https://127.0.0.1:1/", "http://127.0.0.1/", "http://127.0.0.1:x/", "http://127.0.0.1:1/?a=b"):
        assert not is_loopback_url(url)


def test_what_only_commands_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATTERN_TOKEN", " t \n")
    monkeypatch.setenv("PATTERN_SERVER", "https://nas")
    assert remote_token() == "t"
    assert unknown_variables() == []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert user_state_dir() == tmp_path / "pattern"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert user_state_dir().is_relative_to(Path.home())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_only_this_machine_needs_no_permission(host: str, tmp_path: Path) -> None:
    assert is_loopback(host)
    check_exposure(load(data_dir=tmp_path, host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "nas", ""])
def test_other_machines_are_served_only_where_that_is_said(host: str, tmp_path: Path) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"--exposed"):
        check_exposure(load(data_dir=tmp_path, host=host))
    check_exposure(load(data_dir=tmp_path, host=host, exposed=True))
    check_exposure(load(data_dir=tmp_path, host=host, http={"trusted_proxies": ["10.0.0.0/8"]}))


@pytest.mark.parametrize(
    "reached", [{"host": "0.0.0.0"}, {"exposed": True}, {"http": {"trusted_proxies": ["127.0.0.1"]}}]
)
def test_without_a_token_only_this_machine_is_served(reached: dict[str, Any], tmp_path: Path) -> None:
    check_exposure(load(data_dir=tmp_path, open_loopback=True))
    with pytest.raises(ConfigError, match="--open-loopback"):
        check_exposure(load(data_dir=tmp_path, open_loopback=True, **reached))


def test_misfits_name_the_line_and_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    write("""\
prot = 1

[limits.turn]  # a comment
steps_maxx = 3
[providers.mine]
kind = "openai"
api_kye_env = "X"
models."m.1" = {windw = 3}

[providers.mine.models.'b = [c]']
window = 1
""")
    monkeypatch.setenv("PATTERN_SUPERVISOR__DRAIN", "3")
    with pytest.raises(ConfigError) as caught:
        load()
    monkeypatch.delenv("PATTERN_SUPERVISOR__DRAIN")
    for sentence in (
        "prot: is not a known setting, did you mean port? (line 1)",
        "limits.turn.steps_maxx: is not a known setting, did you mean steps_max? (line 4)",
        "providers.mine.api_kye_env: is not a known setting, did you mean api_key_env? (line 7)",
        "providers.mine.models.m.1.windw: is not a known setting, did you mean window? (line 8)",
        "providers.mine.models.b = [c].window: Input should be greater than or equal to 256 (line 11)",
        "supervisor.drain: is not a known setting, did you mean drain_s? (PATTERN_SUPERVISOR__DRAIN)",
    ):
        assert sentence in caught.value.message
    write("[http]\nzzzzz = 1")
    with pytest.raises(ConfigError, match=r"http.zzzzz: is not a known setting \(line 2\)"):
        load()
    write("[http]\nrequests_max = 9")
    file = load().place
    assert [origin_of(("http", name), file) for name in ("requests_max", "cors_origins")] == ["line 2", "line 1"]
    assert origin_of(("port",), file) == origin_of(("port",), Path("none")) == ""


def test_secrets_may_be_in_files(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def secrets() -> list[str]:
        config = load()
        found = [config.bootstrap_token, config.providers["mine"].api_key, config.providers["anthropic"].api_key]
        return [secret.get_secret_value() if secret else "" for secret in found]

    write('[providers.mine]\nkind = "openai"\napi_key_env = "MY_KEY"')
    credentials = alone / "credentials"
    token = "t" * 32
    for name, text in (("PATTERN_BOOTSTRAP_TOKEN", token), ("MY_KEY", "mine"), ("ANTHROPIC_API_KEY", "theirs\n")):
        write(text, f"credentials/{name}")
        monkeypatch.setenv(f"{name}_FILE", str(credentials / name))
    assert secrets() == [token, "mine", "theirs"]
    assert unknown_variables() == []
    assert {"PATTERN_PORT", "PATTERN_CONFIG", "PATTERN_BOOTSTRAP_TOKEN_FILE"} <= known_variables()
    monkeypatch.setenv("MY_KEY", "nearer")
    assert secrets()[1] == "nearer"
    for name in ("PATTERN_BOOTSTRAP_TOKEN_FILE", "MY_KEY", "MY_KEY_FILE", "ANTHROPIC_API_KEY_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))  # as systemd does it
    assert secrets() == [token, "mine", "theirs"]
    assert variable("NO_KEY") is None
    monkeypatch.setenv("MY_KEY_FILE", str(alone / "nowhere"))
    with pytest.raises(ConfigError, match=r"MY_KEY_FILE names .*nowhere, which cannot be read"):
        load()


def test_what_systemd_says_to_its_services(monkeypatch: pytest.MonkeyPatch) -> None:
    assert service_manager() == ("", float("inf"))
    monkeypatch.setenv("NOTIFY_SOCKET", "@pattern")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert service_manager() == ("@pattern", 30.0)
