"""The cluster and the output: from flags, then the environment, then a profile, then the defaults."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from myqueue.cluster_url import DEFAULT_URL, URL_VARIABLE, normalized_url

Format = Literal["table", "json", "csv"]

DEFAULT_TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 86_400.0
_TIMEOUTS = f"a number of seconds above 0, and at most {MAX_TIMEOUT_S:g}"


class BadSettings(Exception):
    """The message names the flag, the variable or the file."""


@dataclass(frozen=True, slots=True)
class Flags:
    """As given on the command line; None if not given."""

    url: str | None = None
    profile: str | None = None
    output: Format | None = None
    timeout: float | None = None
    no_color: bool | None = None

    def over(self, other: "Flags") -> "Flags":
        """These where they are given, else the others."""
        mine = {name: getattr(self, name) for name in self.__slots__}
        return Flags(**{name: getattr(other, name) if value is None else value for name, value in mine.items()})


@dataclass(frozen=True, slots=True)
class Settings:
    url: str
    url_from: str  # where it came from, for messages
    timeout_s: float
    output: Format
    output_from: str
    color: bool


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    url: str | None = None
    timeout: float | None = None
    output: Format | None = None


def config_file(environment: Mapping[str, str]) -> Path:
    """Raises RuntimeError where there is no home."""
    folder = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".config"
    return Path(folder) / "myqueue" / "config.toml"


def resolve(flags: Flags, environment: Mapping[str, str]) -> Settings:
    """The command line wins over the environment, and the environment over a default profile."""
    profile = _profile(flags.profile or environment.get("MYQUEUE_PROFILE") or None, environment)
    places = [("--url", flags.url)]
    if flags.profile:
        places.append((f"profile {flags.profile!r}", profile.url if profile else None))
    places.append((URL_VARIABLE, environment.get(URL_VARIABLE) or None))
    if profile is not None:
        places.append((f"profile {profile.name!r}", profile.url))
    places.append(("the default", DEFAULT_URL))
    url_from, url = next((place, url) for place, url in places if url is not None)
    timeout = flags.timeout
    if timeout is None and profile is not None:
        timeout = profile.timeout
    timeout = DEFAULT_TIMEOUT_S if timeout is None else timeout
    if not _can_be_timeout(timeout):
        raise BadSettings(f"--timeout: must be {_TIMEOUTS}, not {timeout:g}")
    output, output_from = flags.output, "-o"
    if output is None and profile is not None:
        output, output_from = profile.output, f"profile {profile.name!r}"
    return Settings(
        url=_checked_url(url, url_from),
        url_from=url_from,
        timeout_s=timeout,
        output=output or "table",
        output_from=output_from,
        color=not flags.no_color and not environment.get("NO_COLOR"),
    )


def _checked_url(url: str, url_from: str) -> str:
    try:
        url = normalized_url(url)
        (urlsplit(url).hostname or "").encode("idna")
    except UnicodeError:
        raise BadSettings(f"{url_from}: {url!r}: the host is no name that can be looked up") from None
    except ValueError as error:
        raise BadSettings(f"{url_from}: {error}") from None
    return url


def _can_be_timeout(seconds: float) -> bool:
    return 0 < seconds <= MAX_TIMEOUT_S


def _profile(name: str | None, environment: Mapping[str, str]) -> Profile | None:
    """The named profile, or the file's default; None if there is neither."""
    try:
        file = config_file(environment)
    except RuntimeError:
        if name is None:
            return None
        raise BadSettings(f"no profile {name!r}: there is no home folder; set HOME or XDG_CONFIG_HOME") from None
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if name is None:
            return None
        why = f"there is no {file}" if isinstance(error, FileNotFoundError) else f"{file}: {error.strerror}"
        raise BadSettings(f"no profile {name!r}: {why}") from None
    except (OSError, ValueError) as error:
        raise BadSettings(f"{file}: {error}") from None
    profiles = config.get("profiles", {})
    if unknown := sorted(config.keys() - {"default", "profiles"}):
        raise BadSettings(f"{file}: {unknown[0]!r} is not known; there may be 'default' and [profiles.NAME]")
    if not isinstance(profiles, dict):
        raise BadSettings(f"{file}: profiles must be tables: [profiles.NAME]")
    name = name or config.get("default")
    if name is None:
        return None
    if not isinstance(name, str) or name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise BadSettings(f"no profile {name!r} in {file}; there is: {known}")
    return _checked_profile(name, profiles[name], f"{file}: profile {name!r}")


def _checked_profile(name: str, entries: Any, where: str) -> Profile:
    if not isinstance(entries, dict):
        raise BadSettings(f"{where} must be a table: [profiles.{name}]")
    if unknown := sorted(entries.keys() - {"url", "timeout", "output"}):
        raise BadSettings(f"{where}: {unknown[0]!r} is not known; there may be url, timeout and output")
    url, timeout, output = entries.get("url"), entries.get("timeout"), entries.get("output")
    if url is not None and not isinstance(url, str):
        raise BadSettings(f"{where}: url must be a string")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise BadSettings(f"{where}: timeout must be a number of seconds")
    if timeout is not None and not _can_be_timeout(timeout):
        raise BadSettings(f"{where}: timeout must be {_TIMEOUTS}, not {timeout:g}")
    if output not in (None, "table", "json"):
        raise BadSettings(f'{where}: output must be "table" or "json"')
    return Profile(name, url, timeout, output)
