"""The times of a consume: the table in docs/operations.md, the code and nginx's configuration say the same, and
each one that waits gives up later than those it waits for."""

import re
from importlib import import_module
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\|[^|]+\|[^|]+\| (?P<seconds>[0-9.]+) \| (?P<where>`[^|]+) \|$", re.MULTILINE)
IN_NGINX = re.compile(r"`(proxy_read_timeout)` of `(@\w+)`")
NOISE_S = 0.2  # scheduling, and the way there and back


def documented() -> dict[str, float]:
    text = (CHECKOUT / "docs/operations.md").read_text()
    section = text.partition("## How long a consume may take\n")[2].partition("\n## ")[0]
    return {row["where"]: float(row["seconds"]) for row in ROW.finditer(section)}


def actual(where: str) -> float:
    if found := IN_NGINX.fullmatch(where):
        directive, location = found.groups()
        text = (CHECKOUT / "load_balancer/nginx.conf").read_text()
        block = text.partition(f"location {location} {{")[2].partition("\n        }")[0]
        [seconds] = re.findall(rf"^ *{directive} (\d+)s;$", block, re.MULTILINE)
        return float(seconds)
    if where == "`MAX_SECONDS` in `health.js`":
        text = (CHECKOUT / "load_balancer/health.js").read_text()
        [seconds] = re.findall(r"^const MAX_SECONDS = (\d+);", text, re.MULTILINE)
        return float(seconds)
    path = where.strip("`")
    owner, _, name = path.rpartition(".")
    value = default_of(owner, name) if owner.rpartition(".")[2][0].isupper() else getattr(import_module(owner), name)
    return float(value) / 1000 if name.endswith("_MS") else float(value)


def default_of(owner: str, name: str) -> float:
    """Of a setting, or of a field of a dataclass."""
    module, _, cls_name = owner.rpartition(".")
    cls = getattr(import_module(module), cls_name)
    fields = getattr(cls, "model_fields", None)
    value: float = getattr(cls(), name) if fields is None else fields[name].default
    return value


def test_the_table_says_what_the_code_says() -> None:
    table = documented()
    assert len(table) == 17
    assert {where: actual(where) for where in table} == table


def test_each_time_is_inside_the_one_around_it() -> None:
    def at(end: str) -> float:
        [where] = [where for where in documented() if where.strip("`").endswith(end)]
        return actual(where)

    library_s, longest_wait_s, claim_s = at("read_s"), at("MAX_WAIT_MS"), at("claim_s")
    claim_call_s = at(".RETRY_S") + at("CALL_TIMEOUT_S")
    fetch_s = at("ReadManagerSettings.leader_wait_s") + at("ATTEMPT_TIMEOUT_S")
    ends_s = at("WriteManagerSettings.leader_wait_s")
    for inside, around in (
        (at("STATEMENT_TIMEOUT_MS"), at("db.timeouts.ANSWER_TIMEOUT_S")),
        (at("db.timeouts.ANSWER_TIMEOUT_S"), at("FLUSH_TIMEOUT_S")),
        (ends_s + at("FLUSH_TIMEOUT_S"), at("CALL_TIMEOUT_S")),
        (ends_s + at("VERIFY_WAIT_S"), at("CALL_TIMEOUT_S")),
        (claim_call_s + fetch_s, claim_s),
        (claim_s, at("@read")),
        (at("@read"), library_s),
        (longest_wait_s + claim_s, at("@wait")),
        (at("@wait"), longest_wait_s + library_s),
        (at("health.js") + claim_s, longest_wait_s + library_s),
        (library_s, at("deadline_s")),
    ):
        assert inside + NOISE_S <= around
    assert at("BrokerSettings.leader_wait_s") <= ends_s
    assert at("ATTEMPT_TIMEOUT_S") < at("ReadManagerSettings.leader_wait_s"), "there is time for another replica"
