"""Writes docs/settings.md from the settings classes: `python -m stack.settings_table > docs/settings.md`."""

from typing import Any

from broker.config import BrokerSettings
from read_manager.config import ReadManagerSettings
from service.settings import ServiceSettings, describe_default, env_of, flag_of
from stack.config import CHECKOUT, StackConfig
from write_manager.config import WriteManagerSettings

SERVICES: dict[str, type[ServiceSettings]] = {
    "write_manager": WriteManagerSettings,
    "read_manager": ReadManagerSettings,
    "broker": BrokerSettings,
}
INTRODUCTION = r"""# Settings

Every service takes each setting as a flag or as an environment variable; the flag wins. `python -m <service> --help`
prints the same. Wrong values are all reported at once, and the service exits with 2. The unit of a number is the end
of its name. Secrets are better given by the environment: command lines can be seen by others.

A fourth broker for the system that `make up` started:

```sh
number_of() { grep -o "$1\": [0-9]*" .myqueue/run/ports.json | grep -o '[0-9]*$'; }
export MYQUEUE_CLUSTER_SECRET=$(grep -o 'cluster_secret": "[^"]*' .myqueue/secrets.json | cut -d'"' -f3)
url_of() { echo "http://127.0.0.1:$(number_of "$1.internal")"; }
export MYQUEUE_WRITE_MANAGER_URLS=$(url_of write-manager-1),$(url_of write-manager-2)
.venv/bin/python -m broker --port 5204 --raft-port 5304 --data-port 5404 --data-dir .myqueue/data/broker-4
```
"""


def table() -> str:
    lines = [INTRODUCTION]
    shared = set(ServiceSettings.model_fields)
    lines += ["## All services", "", *_rows(ServiceSettings, shared)]
    for name, cls in SERVICES.items():
        own = {f for f, field in cls.model_fields.items() if f not in shared or _differs(f, field)}
        lines += ["", f"## `python -m {name}`", "", *_rows(cls, own)]
    lines += ["", "## `make up`", "", *_stack_rows()]
    return "\n".join(lines) + "\n"


def _differs(name: str, field: Any) -> bool:
    return bool(field.default != ServiceSettings.model_fields[name].default)


def _rows(cls: type[ServiceSettings], names: set[str]) -> list[str]:
    rows = ["| flag | environment | default | what |", "|---|---|---|---|"]
    for name, field in cls.model_fields.items():
        if name in names:
            default = describe_default(field).replace("|", "\\|")
            rows.append(f"| `{flag_of(name)}` | `{env_of(name)}` | {default} | {field.description} |")
    return rows


def _stack_rows() -> list[str]:
    """Settings of the one-machine stack itself come from the environment only."""
    rows = ["| environment | default | what |", "|---|---|---|"]
    for name, field in StackConfig.model_fields.items():
        default = describe_default(field).removeprefix(f"{CHECKOUT}/")
        rows.append(f"| `{env_of(name)}` | {default} | {field.description} |")
    return rows


if __name__ == "__main__":
    print(table(), end="")
