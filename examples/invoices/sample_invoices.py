"""Makes invoices, some of them wrong on purpose. The same seed makes the same invoices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any

from examples.invoices.validity import CURRENCIES, TAX_PERCENTS, tax_cents

INVALID_SHARE = 0.3

_CUSTOMERS = (
    "Ada Lovelace",
    "Blaise Pascal",
    "Émilie du Châtelet",
    "Katherine Johnson",
    "Srinivasa Ramanujan",
    "高木貞治",
)
_GOODS = {"paper, 500 sheets": 649, "ink": 1899, "stapler": 1250, "desk lamp": 4999, "chair": 18900, "stamps": 85}

Invoice = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    invoice: Invoice
    defect: str | None  # the reason that the filter must find; not a part of the invoice

    @property
    def invoice_id(self) -> str:
        return str(self.invoice["invoice_id"])


def make_invoices(generator: str, generator_id: str, count: int, seed: int, run: str) -> Iterator[Made]:
    random = Random(f"{seed}/{generator}/{generator_id}/{run}")
    for number in range(1, count + 1):
        invoice = _right(random, f"{generator}-{generator_id}-{number:06d}", generator, run)
        if random.random() >= INVALID_SHARE:
            yield Made(invoice, None)
            continue
        defect = random.choice(sorted(DEFECTS))
        DEFECTS[defect](invoice, random)
        yield Made(invoice, defect)


def _right(random: Random, invoice_id: str, generator: str, run: str) -> Invoice:
    lines: list[dict[str, Any]] = []
    for description in random.sample(sorted(_GOODS), random.randint(1, 4)):
        quantity, price = random.randint(1, 12), _GOODS[description]
        lines.append(
            {
                "description": description,
                "quantity": quantity,
                "unit_price_cents": price,
                "amount_cents": quantity * price,
            }
        )
    net = sum(line["amount_cents"] for line in lines)
    percent = random.choice(sorted(TAX_PERCENTS))
    tax = tax_cents(net, percent)
    return {
        "run": run,
        "invoice_id": invoice_id,
        "generator": generator,
        "date": str(date(2026, 1, 1) + timedelta(days=random.randrange(365))),
        "customer": random.choice(_CUSTOMERS),
        "currency": random.choice(sorted(CURRENCIES)),
        "lines": lines,
        "net_cents": net,
        "tax_percent": percent,
        "tax_cents": tax,
        "total_cents": net + tax,
    }


def _wrong_total(invoice: Invoice, random: Random) -> None:
    invoice["total_cents"] += random.choice((-100, -1, 1, 100))


def _wrong_tax(invoice: Invoice, random: Random) -> None:
    invoice["tax_cents"] += random.choice((1, 50))
    invoice["total_cents"] = invoice["net_cents"] + invoice["tax_cents"]


def _negative_amount(invoice: Invoice, random: Random) -> None:
    line = random.choice(invoice["lines"])
    line["quantity"] = -line["quantity"]
    line["amount_cents"] = -line["amount_cents"]


def _missing_customer(invoice: Invoice, random: Random) -> None:
    if random.random() < 0.5:
        del invoice["customer"]
    else:
        invoice["customer"] = "  "


def _bad_date(invoice: Invoice, random: Random) -> None:
    invoice["date"] = random.choice(("2026-02-30", "yesterday", "31.12.2026", ""))


def _unknown_currency(invoice: Invoice, random: Random) -> None:
    invoice["currency"] = random.choice(("XXX", "eur", "gold"))


def _no_lines(invoice: Invoice, random: Random) -> None:
    invoice["lines"] = random.choice(([], None))


DEFECTS: dict[str, Callable[[Invoice, Random], None]] = {
    "bad date": _bad_date,
    "missing customer": _missing_customer,
    "negative amount": _negative_amount,
    "no lines": _no_lines,
    "unknown currency": _unknown_currency,
    "wrong tax": _wrong_tax,
    "wrong total": _wrong_total,
}
