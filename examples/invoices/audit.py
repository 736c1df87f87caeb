"""Proves that the counts add up: compares what was made with what was read back. Pure.

A verdict names its source. A filter that takes a partition over from one that has not committed yet sends some verdicts
again; whoever reads them leaves out a source that it has read, as the audit does.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from examples.invoices.sample_invoices import Made

Verdict = dict[str, Any]  # what a filter sends: the invoice, its source, the reason if it is invalid


@dataclass(slots=True)
class Tally:
    sent: int = 0
    valid: int = 0
    invalid: int = 0


@dataclass(slots=True)
class Audit:
    total: Tally = field(default_factory=Tally)
    by_generator: dict[str, Tally] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    sent_again: int = 0  # verdicts of a source that was read already: left out
    lost: list[str] = field(default_factory=list)  # made, on neither side
    repeated: list[str] = field(default_factory=list)  # more than once, on one side or both
    misjudged: list[str] = field(default_factory=list)  # on the wrong side, or with the wrong reason
    unknown: list[str] = field(default_factory=list)  # read back, but never made

    @property
    def adds_up(self) -> bool:
        wrong = self.lost or self.repeated or self.misjudged or self.unknown
        return not wrong and self.total.sent == self.total.valid + self.total.invalid


@dataclass(frozen=True, slots=True)
class Expected:
    generator: str
    defect: str | None


def audit(made: Iterable[Made], valid: Iterable[Verdict], invalid: Iterable[Verdict]) -> Audit:
    """Reads each of them once, and keeps no invoice."""
    result = Audit()
    expected = {one.invoice_id: Expected(str(one.invoice["generator"]), one.defect) for one in made}
    for one in expected.values():
        for tally in (result.total, result.by_generator.setdefault(one.generator, Tally())):
            tally.sent += 1
    seen: Counter[str] = Counter()
    for side, verdicts in (("valid", valid), ("invalid", invalid)):
        sources: set[tuple[int, int]] = set()
        for verdict in verdicts:
            if (source := _source(verdict)) is not None:
                if source in sources:
                    result.sent_again += 1
                    continue
                sources.add(source)
            invoice_id = _invoice_id(verdict)
            seen[invoice_id] += 1
            _count(result, expected.get(invoice_id), side, verdict, invoice_id)
    result.lost = sorted(expected.keys() - seen.keys())
    result.repeated = sorted(invoice_id for invoice_id, times in seen.items() if times > 1)
    return result


def _count(result: Audit, one: Expected | None, side: str, verdict: Verdict, invoice_id: str) -> None:
    tallies = [result.total]
    if one is None:
        result.unknown.append(invoice_id)
    else:
        tallies.append(result.by_generator[one.generator])
        if verdict.get("reason") != one.defect or (side == "valid") != (one.defect is None):
            result.misjudged.append(invoice_id)
    for tally in tallies:
        if side == "valid":
            tally.valid += 1
        else:
            tally.invalid += 1
    if side == "invalid":
        result.reasons[str(verdict.get("reason"))] += 1


def _source(verdict: Verdict) -> tuple[int, int] | None:
    source = verdict.get("source")
    return (int(source["partition"]), int(source["offset"])) if isinstance(source, dict) else None


def _invoice_id(verdict: Verdict) -> str:
    invoice = verdict.get("invoice")
    return str(invoice.get("invoice_id")) if isinstance(invoice, dict) else str(invoice)
