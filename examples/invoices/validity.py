"""The rule that decides whether an invoice is valid. Pure: an invoice in, the reason against it out."""

from collections.abc import Mapping
from datetime import date
from typing import Any

CURRENCIES = frozenset({"CHF", "EUR", "GBP", "INR", "JPY", "USD"})
TAX_PERCENTS = frozenset({0, 7, 19})


def problem(invoice: object) -> str | None:
    """Why the invoice is invalid, None if it is valid. The first problem found counts."""
    if not isinstance(invoice, Mapping):
        return "not an invoice"
    return _identity_problem(invoice) or _date_problem(invoice) or _lines_problem(invoice) or _sums_problem(invoice)


def _identity_problem(invoice: Mapping[str, Any]) -> str | None:
    if not _is_text(invoice.get("invoice_id")):
        return "missing invoice id"
    if not _is_text(invoice.get("customer")):
        return "missing customer"
    if not _is_text(invoice.get("currency")) or invoice["currency"] not in CURRENCIES:
        return "unknown currency"
    return None


def _date_problem(invoice: Mapping[str, Any]) -> str | None:
    try:
        date.fromisoformat(invoice["date"])
    except (KeyError, TypeError, ValueError):
        return "bad date"
    return None


def _lines_problem(invoice: Mapping[str, Any]) -> str | None:
    lines = invoice.get("lines")
    if not isinstance(lines, list) or not lines:
        return "no lines"
    for line in lines:
        if not isinstance(line, Mapping) or not all(
            _is_integer(line.get(name)) for name in ("quantity", "unit_price_cents", "amount_cents")
        ):
            return "incomplete line"
        if line["quantity"] < 1 or line["unit_price_cents"] < 0 or line["amount_cents"] < 0:
            return "negative amount"
        if line["quantity"] * line["unit_price_cents"] != line["amount_cents"]:
            return "wrong line amount"
    return None


def _sums_problem(invoice: Mapping[str, Any]) -> str | None:
    if not all(_is_integer(invoice.get(name)) for name in ("net_cents", "tax_percent", "tax_cents", "total_cents")):
        return "missing sums"
    net = sum(line["amount_cents"] for line in invoice["lines"])
    if invoice["tax_percent"] not in TAX_PERCENTS or invoice["tax_cents"] != tax_cents(net, invoice["tax_percent"]):
        return "wrong tax"
    if invoice["net_cents"] != net or invoice["total_cents"] != net + invoice["tax_cents"]:
        return "wrong total"
    return None


def tax_cents(net_cents: int, percent: int) -> int:
    """Rounded to the nearest cent, half a cent up."""
    return (net_cents * percent + 50) // 100


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
